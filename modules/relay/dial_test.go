package relay

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// slowly is a DialFunc that needs some time for each endpoint, and remembers
// whom it was asked for.
type slowly struct {
	needs map[netip.AddrPort]time.Duration
	asked []netip.AddrPort
}

func (s *slowly) dial(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
	s.asked = append(s.asked, to)
	select {
	case <-time.After(s.needs[to]):
		ours, _ := net.Pipe()
		return ours, nil
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	}
}

// listener has no socket.
func (s *slowly) listener(r Route) *Listener {
	relay := &Relay{cfg: Config{Dial: s.dial, Log: slog.New(slog.DiscardHandler)}}
	return &Listener{relay: relay, protocol: dataplane.TCP, balancer: newBalancer(r)}
}

// A client that is bound to an endpoint waits for it while it is slow, as when a
// packet is lost, also if others have found it silent; but not for ever.
// Proves S6.6.
func TestSlowEndpointKeepsItsClients(t *testing.T) {
	for _, c := range []struct {
		name  string
		needs time.Duration
		// want are the endpoints that are asked, took how long the client waits.
		want []int
		took time.Duration
	}{
		{"in time", 0, []int{0}, 0},
		{"one packet lost", 1100 * time.Millisecond, []int{0}, 1100 * time.Millisecond},
		{"dead", time.Hour, []int{0, 1}, 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slowly{needs: make(map[netip.AddrPort]time.Duration)}
				r := routeOf(1, 1)
				r.Affinity = time.Hour
				l := s.listener(r)
				slow := r.Endpoints[0].Addr
				l.balancer.succeeded(time.Now(), someone, slow)
				l.balancer.failed(time.Now(), netip.MustParseAddr("192.0.2.2"), slow) // as another client found
				s.needs[slow] = c.needs
				began := time.Now()
				_, got, err := l.dial(someone)
				took := time.Since(began)
				if want := r.Endpoints[c.want[len(c.want)-1]].Addr; err != nil || got != want {
					t.Errorf("the client gets %s, %v; want %s", got, err, want)
				}
				var asked []int
				for _, ep := range s.asked {
					asked = append(asked, slices.IndexFunc(r.Endpoints, func(e dataplane.Endpoint) bool { return e.Addr == ep }))
				}
				if !slices.Equal(asked, c.want) || took != c.took {
					t.Errorf("asked %v in %s, want %v in %s", asked, took, c.want, c.took)
				}
				if !l.balancer.binds(someone, got) {
					t.Errorf("the client is not bound to %s, which it gets", got)
				}
			})
		})
	}
}

// However many endpoints are silent, and whether or not the client is bound to
// one, it waits less than four seconds.
func TestPatienceIsTheSameInAll(t *testing.T) {
	for _, bound := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowly{needs: make(map[netip.AddrPort]time.Duration)}
			r := routeOf(1, 1, 1, 1, 1, 1)
			r.Affinity = time.Hour
			for _, e := range r.Endpoints {
				s.needs[e.Addr] = time.Hour
			}
			l := s.listener(r)
			if bound {
				l.balancer.succeeded(time.Now(), someone, r.Endpoints[3].Addr)
			}
			began := time.Now()
			_, _, err := l.dial(someone)
			if took := time.Since(began); err == nil || took != 3750*time.Millisecond {
				t.Errorf("bound %t: waited %s, %v", bound, took, err)
			}
		})
	}
}
