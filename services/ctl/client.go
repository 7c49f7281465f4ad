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

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/answer"
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

// Explain asks what becomes of a flow.
func (c *Client) Explain(ctx context.Context, q answer.Query) (e answer.Explanation, err error) {
	v := url.Values{"proto": {q.Protocol}, "src": {q.Source}, "dst": {q.Destination}, "iface": {q.Interface}}
	return e, c.ask(ctx, http.MethodGet, "/explain?"+v.Encode(), &e)
}

// Audit asks how the kernel differs from what is wanted.
func (c *Client) Audit(ctx context.Context) (a answer.Audit, err error) {
	return a, c.ask(ctx, http.MethodGet, "/audit", &a)
}

// Resync has the agent repair now what differs, and returns what that was.
func (c *Client) Resync(ctx context.Context) (a answer.Audit, err error) {
	return a, c.ask(ctx, http.MethodPost, "/resync", &a)
}

// Service returns the ports of a Service.
func (c *Client) Service(ctx context.Context, n dataplane.ServiceName) (ports []answer.Port, err error) {
	return ports, c.ask(ctx, http.MethodGet, "/services/"+url.PathEscape(n.Namespace)+"/"+url.PathEscape(n.Name), &ports)
}

// State returns what decides on this node besides the API's objects.
func (c *Client) State(ctx context.Context) (s NodeState, err error) {
	return s, c.ask(ctx, http.MethodGet, "/node", &s)
}

// Relay returns what the agent listens for, as relay.WriteTable writes it.
func (c *Client) Relay(ctx context.Context) ([]byte, error) {
	return c.answer(ctx, http.MethodGet, "/relay")
}

func (c *Client) ask(ctx context.Context, method, path string, answer any) error {
	body, err := c.answer(ctx, method, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}

func (c *Client) answer(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// Without the URL, which says nothing to the asker.
		var fail *url.Error
		if errors.As(err, &fail) {
			err = fail.Err
		}
		return nil, fmt.Errorf("ask the agent: %w; does it run on this node, and are you root?", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent says: %s", strings.TrimSpace(string(body)))
	}
	return body, nil
}
