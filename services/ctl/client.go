package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client asks the agent that listens on a unix socket.
type Client struct{ http *http.Client }

// timeout is enough to read back 10,000 Services from a slow kernel.
const timeout = 2 * time.Minute

// NewClient returns a Client, which connects when it is used.
func NewClient(socket string) *Client {
	return &Client{&http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Flow is what to explain. Parts may be left out: the protocol is TCP, the
// source this node.
type Flow struct{ Protocol, Source, Destination, Interface string }

// Explanation is the answer to Explain.
type Explanation struct {
	Flow   string  `json:"flow"`
	Planes []Plane `json:"planes"`
}

// Plane is what one plane does with a flow, beside what it should.
type Plane struct {
	Name   string `json:"plane"`
	Should struct {
		Action, Origin, Reason, ServicePort, Frontend string

		Endpoints []struct{ Address, Masquerade string }
	} `json:"should"`
	Does []struct {
		Action, Endpoint string
		Masqueraded      bool
		Probability      float64
		Steps            []struct{ Object, Detail string }
	} `json:"does"`
	Notes        []string `json:"notes"`
	Agree        bool     `json:"agree"`
	Disagreement string   `json:"disagreement"`
	Error        string   `json:"error"`
}

// Audit is the answer to Audit.
type Audit struct {
	Planes []struct {
		Name        string   `json:"plane"`
		Differences []string `json:"differences"`
		Error       string   `json:"error"`
	} `json:"planes"`
}

// Explain asks what becomes of a flow.
func (c *Client) Explain(ctx context.Context, f Flow) (Explanation, error) {
	q := url.Values{"proto": {f.Protocol}, "src": {f.Source}, "dst": {f.Destination}, "iface": {f.Interface}}
	var e Explanation
	err := c.get(ctx, "/explain?"+q.Encode(), &e)
	return e, err
}

// Audit asks how the kernel differs from what is wanted.
func (c *Client) Audit(ctx context.Context) (Audit, error) {
	var a Audit
	err := c.get(ctx, "/audit", &a)
	return a, err
}

func (c *Client) get(ctx context.Context, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// Without the URL, which says nothing to the asker.
		var fail *url.Error
		if errors.As(err, &fail) {
			err = fail.Err
		}
		return fmt.Errorf("ask the agent: %w; does it run on this node, and are you root?", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the agent says: %s", strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}
