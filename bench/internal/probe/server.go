package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/portway/portway/bench/internal/network"
)

// Ports of the far side, at each of its addresses.
const (
	Arrive = 8080 // accepts, takes note of the endpoint, and closes
	Drain  = 8081 // reads all that comes
	Echo   = 8082 // sends back what comes
)

// Far are the servers of the far side.
type Far struct {
	listeners []net.Listener
	mu        sync.Mutex
	first     map[netip.Addr]time.Time
	last      map[netip.Addr]time.Time
}

// Serve starts the servers.
func Serve(ctx context.Context, h *network.Host) (*Far, error) {
	f := &Far{first: map[netip.Addr]time.Time{}, last: map[netip.Addr]time.Time{}}
	for port, serve := range map[int]func(net.Conn){Arrive: f.arrive, Drain: drain, Echo: echo} {
		err := h.Do(func() error {
			l, err := new(net.ListenConfig).Listen(ctx, "tcp4", (&net.TCPAddr{Port: port}).String())
			if err == nil {
				f.listeners = append(f.listeners, l)
				go accept(l, serve)
			}
			return err
		})
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// Close ends the servers.
func (f *Far) Close() error {
	var errs []error
	for _, l := range f.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		serve(c)
	}
}

func (f *Far) arrive(c net.Conn) {
	now := time.Now()
	at := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	_ = c.(*net.TCPConn).SetLinger(0) // leaves nothing behind in the kernel
	c.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.first[at]; !known {
		f.first[at] = now
	}
	f.last[at] = now
}

// First is when the first connection came to an endpoint.
func (f *Far) First(endpoint netip.Addr) (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.first[endpoint]
	return t, ok
}

// Last is when the last connection came to an endpoint.
func (f *Far) Last(endpoint netip.Addr) (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.last[endpoint]
	return t, ok
}

func drain(c net.Conn) {
	go func() {
		defer c.Close()
		_, _ = io.Copy(io.Discard, c) // ends with the client
	}()
}

func echo(c net.Conn) {
	go func() {
		defer c.Close()
		_, _ = io.Copy(c, c) // ends with the client
	}()
}
