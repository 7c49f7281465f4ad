package relay

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// exchange opens a UDP socket of the client pod.
func (s *site) exchange(l *Listener) *net.UDPConn {
	s.Helper()
	conn, err := s.Client.DialUDP(s.Context(), 0, l.Addr())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn
}

func (s *site) send(conn *net.UDPConn) rig.Result {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	return rig.Ask(ctx, conn)
}

// count is how many exchanges there are.
func (t *sessions) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lru.Len()
}

func TestUDPStaysWithItsEndpoint(t *testing.T) {
	s := newSite(t, Config{})
	for _, h := range s.Endpoints {
		h.Serve(t, rig.UDP, 8080)
	}
	l := s.listen(dataplane.UDP, s.to(s.Endpoints...))
	seen := make(map[string]bool)
	for range 3 {
		conn := s.exchange(l)
		first := s.send(conn)
		seen[first.Server] = true
		for range 3 {
			if got := s.send(conn); got.Server != first.Server || got.Server == "" {
				t.Errorf("the exchange moves from %s to %s", first, got)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("three exchanges reach only %v", seen)
	}
}

func TestUDPRefusalIsNotNoticed(t *testing.T) {
	s := newSite(t, Config{})
	s.Endpoints[2].Serve(t, rig.UDP, 8080)
	l := s.listen(dataplane.UDP, s.to(s.Endpoints...))
	for range 4 {
		if got := s.send(s.exchange(l)); got.Server != "e3" {
			t.Errorf("the client gets %s, want e3", got)
		}
	}
	if said := s.log.String(); !strings.Contains(said, "connection refused") {
		t.Errorf("the log does not tell of the endpoints that refuse: %s", said)
	}
}

// Proves S7.3, kubernetes#19029.
func TestUDPEndsWithItsEndpoint(t *testing.T) {
	s := newSite(t, Config{})
	for _, h := range s.Endpoints {
		h.Serve(t, rig.UDP, 8080)
	}
	l := s.listen(dataplane.UDP, s.to(s.Endpoints[0]))
	conn := s.exchange(l)
	if got := s.send(conn); got.Server != "e1" {
		t.Fatal(got)
	}
	draining := s.to(s.Endpoints[1])
	draining.Serving = append(draining.Serving, at(s.Endpoints[0]), at(s.Endpoints[1]))
	l.Set(draining)
	if got := s.send(conn); got.Server != "e1" {
		t.Errorf("e1 still serves, and the exchange goes on with %s", got)
	}
	l.Set(s.to(s.Endpoints[1]))
	if got := s.send(conn); got.Server != "e2" {
		t.Errorf("e1 has left, and the exchange goes on with %s", got)
	}
}

func TestUDPExchangesAreFew(t *testing.T) {
	s := newSite(t, Config{MaxSessions: 3})
	s.Endpoints[0].Serve(t, rig.UDP, 8080)
	l := s.listen(dataplane.UDP, s.to(s.Endpoints[0]))
	var conns []*net.UDPConn
	for range 5 {
		conn := s.exchange(l)
		conns = append(conns, conn)
		if got := s.send(conn); got.Server != "e1" {
			t.Fatal(got)
		}
		if n := s.relay.sessions.count(); n > 3 {
			t.Errorf("%d exchanges at once, want 3", n)
		}
	}
	slices.Reverse(conns)
	for i, conn := range conns[:3] {
		if s.relay.sessions.find(l, addrOf(conn.LocalAddr())) == nil {
			t.Errorf("exchange %d from the end has made room for an older one", i)
		}
	}
}

func TestUDPExchangesEndWhenIdle(t *testing.T) {
	s := newSite(t, Config{UDPIdle: 100 * time.Millisecond})
	s.Endpoints[0].Serve(t, rig.UDP, 8080)
	l := s.listen(dataplane.UDP, s.to(s.Endpoints[0]))
	conn := s.exchange(l)
	if got := s.send(conn); got.Server != "e1" {
		t.Fatal(got)
	}
	s.until("the idle exchange ends", func() bool { return s.relay.sessions.count() == 0 })
	if got := s.send(conn); got.Server != "e1" {
		t.Errorf("the client that was idle gets %s", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := s.relay.sessions.count(); n != 0 {
		t.Errorf("a closed listener has %d exchanges", n)
	}
}
