package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// balancer chooses endpoints: in turn by weight, but a client with affinity
// stays where it was, and endpoints that did not answer lately come last.
type balancer struct {
	mu    sync.Mutex
	route Route
	// credit is what each endpoint has saved up: every turn gives each its
	// weight, and who has most pays the sum of all. So turns are spread as
	// evenly as the weights allow.
	credit []int
	// start breaks ties, so that not all nodes begin with the same endpoint.
	start   int
	bound   map[netip.Addr]binding
	failing map[netip.AddrPort]failure
	// purge is the number of bindings at which expired ones are looked for.
	purge int
}

// binding is a client's endpoint.
type binding struct {
	to    netip.AddrPort
	until time.Time
}

// failure is an endpoint that did not answer, and how long it is left alone.
type failure struct {
	until time.Time
	wait  time.Duration
}

const (
	minFailureWait = time.Second
	maxFailureWait = 30 * time.Second
	minPurge       = 1024
)

func newBalancer(r Route) *balancer {
	b := &balancer{start: rand.IntN(1 << 16), purge: minPurge}
	b.bound, b.failing = make(map[netip.Addr]binding), make(map[netip.AddrPort]failure)
	b.set(r)
	return b
}

func (b *balancer) current() Route {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.route
}

// set changes the route and keeps what is remembered of endpoints that stay.
func (b *balancer) set(to Route) {
	b.mu.Lock()
	defer b.mu.Unlock()
	saved := make(map[netip.AddrPort]int, len(b.credit))
	for i, e := range b.route.Endpoints {
		saved[e.Addr] = b.credit[i]
	}
	b.route = to
	b.credit = make([]int, len(to.Endpoints))
	stays := make(map[netip.AddrPort]bool, len(to.Endpoints))
	for i, e := range to.Endpoints {
		b.credit[i] = saved[e.Addr]
		stays[e.Addr] = true
	}
	for client, k := range b.bound {
		if !stays[k.to] || to.Affinity == 0 {
			delete(b.bound, client)
		}
	}
	for ep := range b.failing {
		if !stays[ep] {
			delete(b.failing, ep)
		}
	}
}

// order lists all endpoints in the order in which a client should try them: its
// own first, whatever other clients found, then those that answer.
func (b *balancer) order(now time.Time, client netip.Addr) []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.route.Endpoints)
	first, bound := b.boundTo(now, client)
	if !bound {
		first = b.turn(now)
	}
	list, last := make([]netip.AddrPort, 0, n), []netip.AddrPort(nil)
	for i := range n {
		ep := b.route.Endpoints[(first+i)%n].Addr
		if own := bound && i == 0; own || !b.resting(now, ep) {
			list = append(list, ep)
		} else {
			last = append(last, ep)
		}
	}
	return append(list, last...)
}

// boundTo is the endpoint that a client used last.
func (b *balancer) boundTo(now time.Time, client netip.Addr) (int, bool) {
	k, ok := b.bound[client]
	if !ok || !now.Before(k.until) {
		return 0, false
	}
	i := slices.IndexFunc(b.route.Endpoints, func(e dataplane.Endpoint) bool { return e.Addr == k.to })
	return i, i >= 0
}

// binds tells whether a client has a binding to an endpoint.
func (b *balancer) binds(client netip.Addr, ep netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bound[client].to == ep
}

// turn is whose turn it is among those that answer; among all if none does.
func (b *balancer) turn(now time.Time) int {
	best, total, n := -1, 0, len(b.route.Endpoints)
	for i := range n {
		i = (b.start + i) % n
		e := b.route.Endpoints[i]
		if b.resting(now, e.Addr) {
			continue
		}
		b.credit[i] += int(e.Weight)
		total += int(e.Weight)
		if best < 0 || b.credit[i] > b.credit[best] {
			best = i
		}
	}
	if best < 0 {
		b.start++
		return b.start % max(n, 1)
	}
	b.credit[best] -= total
	return best
}

// resting tells whether an endpoint is left alone for a while.
func (b *balancer) resting(now time.Time, ep netip.AddrPort) bool {
	f, ok := b.failing[ep]
	return ok && now.Before(f.until)
}

// succeeded binds a client to the endpoint that answered.
func (b *balancer) succeeded(now time.Time, client netip.Addr, ep netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failing, ep)
	if b.route.Affinity == 0 || !b.has(ep) {
		return
	}
	if len(b.bound) >= b.purge {
		for c, k := range b.bound {
			if !now.Before(k.until) {
				delete(b.bound, c)
			}
		}
		b.purge = max(minPurge, 2*len(b.bound))
	}
	b.bound[client] = binding{ep, now.Add(b.route.Affinity)}
}

// failed forgets that a client used an endpoint (kubernetes#24648) and leaves
// the endpoint alone, longer each time. It tells for how long, and whether that
// is news: flows that began at the same time may all find out.
func (b *balancer) failed(now time.Time, client netip.Addr, ep netip.AddrPort) (wait time.Duration, news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bound[client].to == ep {
		delete(b.bound, client)
	}
	f := b.failing[ep]
	if b.resting(now, ep) || !b.has(ep) {
		return f.wait, false
	}
	f.wait = min(max(2*f.wait, minFailureWait), maxFailureWait)
	f.until = now.Add(f.wait)
	b.failing[ep] = f
	return f.wait, true
}

func (b *balancer) has(ep netip.AddrPort) bool {
	return slices.ContainsFunc(b.route.Endpoints, func(e dataplane.Endpoint) bool { return e.Addr == ep })
}

// tell adds the route to what is told of a listener, and what is remembered of
// endpoints and of some clients.
func (b *balancer) tell(l *Listening, now time.Time, clients func(netip.Addr) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.Route, l.Bound, l.Resting = b.route, make(map[netip.Addr]Binding), make(map[netip.AddrPort]time.Duration)
	for client, k := range b.bound {
		if now.Before(k.until) && clients(client) {
			l.Bound[client] = Binding{k.to, k.until.Sub(now)}
		}
	}
	for ep := range b.failing {
		if b.resting(now, ep) {
			l.Resting[ep] = b.failing[ep].until.Sub(now)
		}
	}
}
