package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
)

// Outside asks from the machine that runs the tests: it is on the network of the
// nodes, and neither a node nor a pod.
func Outside() Place {
	return Place{Name: "outside", ask: func(ctx context.Context, q Question) ([]string, error) {
		var answers []string
		for range q.tries() {
			a, err := askOnce(ctx, q)
			if err != nil {
				return answers, ending(err)
			}
			answers = append(answers, a)
		}
		return answers, nil
	}}
}

func askOnce(ctx context.Context, q Question) (string, error) {
	if q.UDP {
		return askUDP(ctx, q)
	}
	// A connection for each request: an old one would not meet the proxy.
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.url(), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", resp.Status)
	}
	return string(body), err
}

func askUDP(ctx context.Context, q Question) (string, error) {
	s, err := OpenUDP(ctx, q.target())
	if err != nil {
		return "", err
	}
	defer s.Close()
	return s.Ask(q.Ask)
}

// ending names the end that an error of a socket stands for.
func ending(err error) error {
	var ne net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// OutsideAddr is the address that the outside has towards a node.
func OutsideAddr(ctx context.Context, n Node, like netip.Addr) (netip.Addr, error) {
	// Connecting a UDP socket sends nothing.
	conn, err := new(net.Dialer).DialContext(ctx, "udp", netip.AddrPortFrom(n.Addr(like), 9).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return local.Addr(), err
}
