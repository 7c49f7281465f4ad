package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// Config is how a relay works. The zero value is a good choice.
type Config struct {
	// Log hears of endpoints that do not answer, and what is done about it;
	// nil discards.
	Log *slog.Logger
	// Dial opens connections to endpoints; nil is Dialer(0). The network is
	// tcp4, tcp6, udp4 or udp6.
	Dial DialFunc
	// HalfClosed is how long a TCP connection of which one side has said all
	// may be silent. Default one hour, as kube-proxy tells conntrack.
	HalfClosed time.Duration
	// UDPIdle ends an exchange of datagrams. Default 30 s, as conntrack's.
	UDPIdle time.Duration
	// MaxSessions limits the exchanges of datagrams of all listeners together;
	// the one that was silent the longest makes room. Default 16384.
	MaxSessions int
}

// DialFunc opens a connection to an endpoint.
type DialFunc func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)

// A Relay is a set of listeners that share limits.
type Relay struct {
	cfg      Config
	sessions *sessions
	buffers  sync.Pool

	accepted atomic.Uint64 // TCP connections

	mu   sync.Mutex
	open map[place]*Listener
}

// place is where a listener listens.
type place struct {
	protocol dataplane.Protocol
	addr     netip.AddrPort
}

// New returns a relay without listeners.
func New(cfg Config) *Relay {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dial == nil {
		cfg.Dial = Dialer(func() uint32 { return 0 })
	}
	if cfg.HalfClosed <= 0 {
		cfg.HalfClosed = time.Hour
	}
	if cfg.UDPIdle <= 0 {
		cfg.UDPIdle = 30 * time.Second
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = 16384
	}
	return &Relay{
		cfg:      cfg,
		sessions: newSessions(cfg.MaxSessions),
		open:     make(map[place]*Listener),
		buffers:  sync.Pool{New: func() any { return new([maxDatagram]byte) }},
	}
}

// A Route is where the flows of a listener go.
type Route struct {
	Name dataplane.ServicePortName
	// Scope is where the endpoints were chosen from.
	Scope dataplane.Scope
	// Endpoints are those among which a new flow chooses.
	Endpoints []dataplane.Endpoint
	// Serving are the endpoints to which existing exchanges of datagrams may
	// go on, besides Endpoints; sorted. TCP connections go on anyway.
	Serving []netip.AddrPort
	// Affinity is how long a client stays with an endpoint after its last new
	// flow; 0 is no affinity.
	Affinity time.Duration
}

// RouteTo is the route to a pool of a ServicePort.
func RouteTo(sp *dataplane.ServicePort, p *dataplane.Pool) Route {
	return Route{Name: sp.Name, Scope: p.Scope, Endpoints: p.Endpoints, Serving: sp.Serving, Affinity: sp.Affinity}
}

// Equal tells whether two routes lead to the same.
func (r Route) Equal(o Route) bool {
	return r.Name == o.Name && r.Scope == o.Scope && r.Affinity == o.Affinity &&
		slices.Equal(r.Endpoints, o.Endpoints) && slices.Equal(r.Serving, o.Serving)
}

// String lists the endpoints.
func (r Route) String() string {
	all := make([]string, len(r.Endpoints))
	for i, e := range r.Endpoints {
		all[i] = e.Addr.String()
		if e.Weight > 1 {
			all[i] += fmt.Sprintf(" weight %d", e.Weight)
		}
	}
	s := strings.Join(all, ", ")
	if r.Affinity > 0 {
		s += fmt.Sprintf(", affinity %s", r.Affinity)
	}
	return s
}

// keeps tells whether exchanges with an endpoint may go on.
func (r Route) keeps(a netip.AddrPort) bool {
	if _, ok := slices.BinarySearchFunc(r.Serving, a, netip.AddrPort.Compare); ok {
		return true
	}
	return slices.ContainsFunc(r.Endpoints, func(e dataplane.Endpoint) bool { return e.Addr == a })
}

// A Listener takes flows at one address and port. It is safe for concurrent use.
type Listener struct {
	relay    *Relay
	protocol dataplane.Protocol
	addr     netip.AddrPort
	balancer *balancer
	socket   io.Closer
	closed   chan struct{}
}

// Listen opens a listener for TCP or UDP. Port 0 takes any free one. Flows that
// come before it returns are served too.
func (r *Relay) Listen(ctx context.Context, p dataplane.Protocol, at netip.AddrPort, to Route) (*Listener, error) {
	l := &Listener{relay: r, protocol: p, balancer: newBalancer(to), closed: make(chan struct{})}
	var err error
	switch p {
	case dataplane.TCP:
		err = l.listenTCP(ctx, at)
	case dataplane.UDP:
		err = l.listenUDP(ctx, at)
	default:
		err = errors.ErrUnsupported
	}
	if err != nil {
		return nil, fmt.Errorf("relay %s for %s: listen at %s: %w", p, to.Name, at, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[place{p, l.addr}] = l
	return l, nil
}

// Listens tells whether a listener of this relay is open at an address. It is
// safe for concurrent use.
func (r *Relay) Listens(p dataplane.Protocol, at netip.AddrPort) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open[place{p, at}] != nil
}

// Addr is where the listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Protocol is TCP or UDP.
func (l *Listener) Protocol() dataplane.Protocol { return l.protocol }

// Route is where new flows go.
func (l *Listener) Route() Route { return l.balancer.current() }

// Set changes where new flows go. Bindings of clients to endpoints that are in
// both routes stay, those to others are forgotten for good, and exchanges of
// datagrams with endpoints that no longer serve end.
func (l *Listener) Set(to Route) {
	l.balancer.set(to)
	l.relay.sessions.end(func(s *session) bool { return s.listener == l && !to.keeps(s.to) })
}

// Close stops listening, and the port is free. TCP connections go on to their
// own end; exchanges of datagrams stop.
func (l *Listener) Close() error {
	close(l.closed)
	l.relay.mu.Lock()
	delete(l.relay.open, place{l.protocol, l.addr})
	l.relay.mu.Unlock()
	err := l.socket.Close()
	l.relay.sessions.end(func(s *session) bool { return s.listener == l })
	return err
}

func network(p dataplane.Protocol, a netip.Addr) string {
	n := strings.ToLower(p.String()) + "4"
	if dataplane.FamilyOf(a) == dataplane.IPv6 {
		n = strings.ToLower(p.String()) + "6"
	}
	return n
}
