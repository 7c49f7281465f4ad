package relay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(childTarget); address != "" {
		os.Exit(child(address))
	}
	os.Exit(rig.Main(m))
}

// patience is for what a busy machine may take a while to do.
const patience = 20 * time.Second

// site is a rig with a relay on its node.
type site struct {
	testing.TB
	*rig.Rig
	relay *Relay
	log   *log
	// dialing is held while the relay dials, and by the end of the test, which
	// takes the rig away.
	dialing sync.RWMutex
}

func newSite(t testing.TB, cfg Config) *site {
	t.Helper()
	s := &site{TB: t, Rig: rig.New(t, rig.Options{Endpoints: 3}), log: new(log)}
	cfg.Log = slog.New(slog.NewTextHandler(s.log, nil))
	if cfg.Dial == nil {
		cfg.Dial = s.dial
	}
	s.relay = New(cfg)
	t.Cleanup(s.dialing.Lock)
	return s
}

// dial opens connections in the node, where goroutines of the relay are not.
func (s *site) dial(ctx context.Context, network string, to netip.AddrPort) (conn net.Conn, err error) {
	if !s.dialing.TryRLock() {
		return nil, errors.New("the test has ended")
	}
	defer s.dialing.RUnlock()
	err = s.Node.Do(func() error {
		conn, err = Dialer(func() uint32 { return 0 })(ctx, network, to)
		return err
	})
	return conn, err
}

func (s *site) listen(p dataplane.Protocol, to Route) *Listener {
	s.Helper()
	var l *Listener
	err := s.Node.Do(func() (err error) {
		l, err = s.relay.Listen(s.Context(), p, netip.AddrPortFrom(s.Node.Addr4, 0), to)
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		select {
		case <-l.closed:
		default:
			l.Close()
		}
	})
	return l
}

// to is a route to port 8080 of hosts.
func (s *site) to(hosts ...*rig.Host) Route {
	r := Route{Name: dataplane.ServicePortName{Namespace: "default", Name: "web"}}
	for _, h := range hosts {
		r.Endpoints = append(r.Endpoints, dataplane.Endpoint{Addr: at(h), Weight: 1})
	}
	return r
}

func at(h *rig.Host) netip.AddrPort { return netip.AddrPortFrom(h.Addr4, 8080) }

func (s *site) ask(l *Listener, p rig.Protocol) rig.Result {
	s.Helper()
	return rig.Probe{From: s.Client, Proto: p, To: l.Addr(), Timeout: patience}.Send(s.Context())
}

// connect opens a TCP connection from the client pod.
func (s *site) connect(l *Listener) *net.TCPConn {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	conn, err := s.Client.Dial(ctx, rig.TCP, netip.AddrPort{}, l.Addr())
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// until waits for a condition.
func (s *site) until(what string, condition func() bool) {
	s.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			s.Fatalf("%s: not within %s", what, patience)
		}
		<-tick.C
	}
}

// log collects what the relay says.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
