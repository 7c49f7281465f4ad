package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

func routeOf(weights ...uint16) Route {
	var r Route
	for i, w := range weights {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), 8080)
		r.Endpoints = append(r.Endpoints, dataplane.Endpoint{Addr: a, Weight: w})
	}
	return r
}

var (
	start   = time.Unix(1000, 0)
	someone = netip.MustParseAddr("192.0.2.1")
)

// Proves S2.11.
func TestTurnsFollowWeights(t *testing.T) {
	r := routeOf(1, 3, 1)
	b := newBalancer(r)
	count := make(map[netip.AddrPort]int)
	for range 50 {
		count[b.order(start, someone)[0]]++
	}
	for i, want := range []int{10, 30, 10} {
		if got := count[r.Endpoints[i].Addr]; got != want {
			t.Errorf("endpoint %d had %d of 50 turns, want %d", i, got, want)
		}
	}
}

func TestOrderNamesEveryEndpointOnce(t *testing.T) {
	r := routeOf(1, 1, 1, 1)
	b := newBalancer(r)
	b.failed(start, someone, r.Endpoints[2].Addr)
	list := b.order(start, someone)
	seen := make(map[netip.AddrPort]bool)
	for _, ep := range list {
		seen[ep] = true
	}
	if len(list) != 4 || len(seen) != 4 || list[3] != r.Endpoints[2].Addr {
		t.Errorf("order is %v, want each once and %s, which failed, last", list, r.Endpoints[2].Addr)
	}
}

func TestFailingEndpointsRestLongerEachTime(t *testing.T) {
	r := routeOf(1, 1)
	b := newBalancer(r)
	bad, now := r.Endpoints[0].Addr, start
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		wait, news := b.failed(now, someone, bad)
		if wait != want*time.Second || !news {
			t.Fatalf("rests for %s (news %t), want %s", wait, news, want*time.Second)
		}
		if _, news := b.failed(now, someone, bad); news {
			t.Fatal("a second flow that finds out the same is told as news")
		}
		for range 4 {
			if got := b.order(now.Add(wait-1), someone)[0]; got == bad {
				t.Fatal("an endpoint that rests is chosen")
			}
		}
		now = now.Add(wait)
	}
	b.succeeded(now, someone, bad)
	if wait, _ := b.failed(now, someone, bad); wait != time.Second {
		t.Errorf("after it answered once it rests for %s, want 1s", wait)
	}
}

// Proves S6.3.
func TestAffinity(t *testing.T) {
	r := routeOf(1, 1, 1)
	r.Affinity = time.Minute
	b := newBalancer(r)
	bound := b.order(start, someone)[0]
	b.succeeded(start, someone, bound)
	other := netip.MustParseAddr("192.0.2.2")
	at := func(after time.Duration) netip.AddrPort {
		b.order(start, other) // so that the turns move on
		return b.order(start.Add(after), someone)[0]
	}
	for range 5 {
		if got := at(59 * time.Second); got != bound {
			t.Fatalf("within the timeout the client gets %s, want %s", got, bound)
		}
	}
	b.succeeded(start.Add(59*time.Second), someone, bound)
	if got := at(118 * time.Second); got != bound {
		t.Errorf("a new flow does not restart the timeout: %s, want %s", got, bound)
	}
	seen := make(map[netip.AddrPort]bool)
	for range 3 {
		seen[b.order(start.Add(119*time.Second), someone)[0]] = true
	}
	if len(seen) != 3 {
		t.Errorf("after the timeout the client sees only %v", seen)
	}
}

// kubernetes#110302, #25314: a binding never overrides the usable set, and ends
// for good when its endpoint leaves; the others survive whatever comes.
// Proves S6.4, S6.5.
func TestBindingsFollowTheRoute(t *testing.T) {
	r := routeOf(1, 1, 1)
	r.Affinity = time.Hour
	b := newBalancer(r)
	stays, leaves := r.Endpoints[0].Addr, r.Endpoints[2].Addr
	other := netip.MustParseAddr("192.0.2.2")
	b.succeeded(start, someone, stays)
	b.succeeded(start, other, leaves)
	smaller := r
	smaller.Endpoints = r.Endpoints[:2]
	b.set(smaller)
	if got := b.order(start, other)[0]; got == leaves {
		t.Errorf("the client still gets %s, which has left", got)
	}
	b.set(r)
	if b.bound[other].to == leaves {
		t.Error("the binding came back with its endpoint")
	}
	if got := b.order(start, someone)[0]; got != stays {
		t.Errorf("the other client gets %s, want %s", got, stays)
	}
	b.set(Route{Affinity: time.Hour})
	b.set(r)
	b.succeeded(start, someone, stays)
	if got := b.order(start, someone)[0]; got != stays {
		t.Errorf("after an empty set there is no affinity: %s, want %s", got, stays)
	}
}

func TestExpiredBindingsArePurged(t *testing.T) {
	r := routeOf(1)
	r.Affinity = time.Minute
	b := newBalancer(r)
	now := start
	for i := range 10 * minPurge {
		client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		b.succeeded(now, client, r.Endpoints[0].Addr)
		now = now.Add(time.Second)
	}
	if n := len(b.bound); n > minPurge {
		t.Errorf("%d bindings are kept, of which 60 are valid", n)
	}
}
