package servicecache

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/portway/portway/modules/dataplane"
)

// A Cache turns objects into snapshots. It keeps of each object only what
// matters and no reference to the object itself. It is not safe for concurrent
// use.
//
//  1. The order, batching and repetition of changes never matter: what Build
//     returns depends on the objects that are there.
//  2. Build costs what the changes since the last one concern, not what exists.
//  3. Nothing in an object makes it panic or spoils what another object asks.
type Cache struct {
	settings
	entries map[dataplane.ServiceName]*entry
	slices  map[sliceName]*slice
	cidrs   map[string][]netip.Prefix
	claims  claims
	node    nodeFacts
	local   Local
	// serviceIPs count the claims for LB IPs and externalIPs, ignoredIPs the
	// ClusterIPs of ignored Services.
	serviceIPs, ignoredIPs map[netip.Addr]int

	// What changed since the last Build. No maps: to walk one costs its
	// greatest size, for ever, and the first list makes everything change.
	dirty     []*entry
	dirtyIPs  []netip.Addr // of ignoredIPs
	dirtyNode bool
	triggers  []time.Time
	problems  []Problem

	snapshot *dataplane.Snapshot
	scratch  []candidate
}

// New returns a Cache without objects. The error names all that is wrong with
// the configuration.
func New(c Config) (*Cache, error) {
	s, err := c.check()
	if err != nil {
		return nil, err
	}
	cache := &Cache{
		settings:   s,
		entries:    make(map[dataplane.ServiceName]*entry),
		slices:     make(map[sliceName]*slice),
		cidrs:      make(map[string][]netip.Prefix),
		claims:     make(claims),
		serviceIPs: make(map[netip.Addr]int),
		ignoredIPs: make(map[netip.Addr]int),
		snapshot:   dataplane.Empty(),
	}
	cache.setNodeFacts(nodeFacts{})
	cache.dirtyNode = true
	return cache, nil
}

// SetService adds or replaces a Service.
func (c *Cache) SetService(o *corev1.Service) { c.setService(c.service(o)) }

// DeleteService removes a Service if it is there.
func (c *Cache) DeleteService(n dataplane.ServiceName) {
	if e := c.entries[n]; e != nil && e.spec != nil {
		c.respecify(e, nil)
	}
}

// SetEndpointSlice adds or replaces an EndpointSlice.
func (c *Cache) SetEndpointSlice(o *discoveryv1.EndpointSlice) {
	if s := c.slice(o); s != nil {
		c.setSlice(s)
	} else {
		c.deleteSlice(sliceName{o.Namespace, o.Name})
	}
}

// DeleteEndpointSlice removes an EndpointSlice if it is there.
func (c *Cache) DeleteEndpointSlice(namespace, name string) {
	c.deleteSlice(sliceName{namespace, name})
}

// SetServiceCIDR adds or replaces a ServiceCIDR.
func (c *Cache) SetServiceCIDR(o *networkingv1.ServiceCIDR) { readCIDRs(o).set(c) }

// DeleteServiceCIDR removes a ServiceCIDR if it is there.
func (c *Cache) DeleteServiceCIDR(name string) {
	delete(c.cidrs, name)
	c.dirtyNode = true
}

func (c *Cache) entry(n dataplane.ServiceName) *entry {
	e := c.entries[n]
	if e == nil {
		e = &entry{name: n}
		c.entries[n] = e
	}
	return e
}

func (c *Cache) setService(s *service) {
	e := c.entry(s.name)
	if e.spec != nil && reflect.DeepEqual(e.spec, s) {
		return
	}
	var old []Problem
	if e.spec != nil {
		old = e.spec.problems
	}
	c.problems = append(c.problems, news(old, s.problems)...)
	c.respecify(e, s)
}

// respecify exchanges what a Service asks for and settles who has which
// address; all whose addresses come or go will be evaluated.
func (c *Cache) respecify(e *entry, s *service) {
	c.mark(e)
	for i := range e.claims {
		c.mark(c.claims.remove(&e.claims[i]))
		c.countServiceIP(&e.claims[i], -1)
	}
	c.countIgnored(e.spec, -1)
	e.spec = s
	e.claims = e.claim()
	for i := range e.claims {
		c.mark(c.claims.insert(&e.claims[i]))
		c.countServiceIP(&e.claims[i], 1)
	}
	c.countIgnored(s, 1)
}

func (c *Cache) mark(e *entry) {
	if e != nil && !e.dirty {
		e.dirty = true
		c.dirty = append(c.dirty, e)
	}
}

func count(m map[netip.Addr]int, a netip.Addr, by int) (flipped bool) {
	was := m[a]
	if was+by == 0 {
		delete(m, a)
	} else {
		m[a] = was + by
	}
	return was == 0 || was+by == 0
}

func (c *Cache) countServiceIP(cl *claim, by int) {
	if cl.kind != dataplane.LoadBalancerIP && cl.kind != dataplane.ExternalIP {
		return
	}
	if count(c.serviceIPs, cl.key.Addr, by) && c.local.holdsAlone(cl.key.Addr) {
		c.dirtyNode = true // it may begin or cease to answer on NodePorts
	}
}

func (c *Cache) countIgnored(s *service, by int) {
	if s == nil || !s.ignored {
		return
	}
	for _, f := range s.families() {
		a := *s.clusterIPs.of(f)
		count(c.ignoredIPs, a, by)
		c.dirtyIPs = append(c.dirtyIPs, a)
	}
}

func (c *Cache) setSlice(s *slice) {
	old := c.slices[s.name]
	if old != nil && old.service != s.service {
		c.deleteSlice(s.name)
		old = nil
	}
	e := c.entry(s.service)
	c.slices[s.name] = s
	e.putSlice(s)
	if old != nil && old.equal(s) {
		return
	}
	c.mark(e)
	var known []Problem
	if old != nil {
		known = old.problems
	}
	c.problems = append(c.problems, news(known, s.problems)...)
	if s.trigger.After(c.Start) && (old == nil || !s.trigger.Equal(old.trigger)) {
		c.triggers = append(c.triggers, s.trigger)
	}
}

func (c *Cache) deleteSlice(n sliceName) {
	s := c.slices[n]
	if s == nil {
		return
	}
	delete(c.slices, n)
	e := c.entries[s.service]
	e.removeSlice(n.name)
	c.mark(e)
}

// Build returns the snapshot of all that was set, and the problems that came
// up since the last Build. It is the last snapshot itself if nothing came of
// the changes. accepted is when the first of them came in.
func (c *Cache) Build(accepted time.Time) (*dataplane.Snapshot, []Problem) {
	b := c.snapshot.Edit()
	changed := c.buildNode(b)
	for _, a := range c.dirtyIPs {
		changed = changed || c.snapshot.IsIgnored(a) != (c.ignoredIPs[a] > 0)
		b.Ignore(a, c.ignoredIPs[a] > 0)
	}
	for _, e := range c.dirty {
		e.dirty = false
		changed = c.buildEntry(b, e) || changed
	}
	if changed {
		b.Changed(accepted, c.triggers...)
		next, err := b.Build()
		if err != nil {
			c.problems = append(c.problems, Problem{Reason: NotProgrammable, Message: err.Error()})
		}
		c.snapshot = next
	}
	found := c.problems
	slices.SortStableFunc(found, func(a, b Problem) int { return cmp.Compare(a.String(), b.String()) })
	c.dirty, c.dirtyIPs, c.triggers, c.problems = nil, nil, nil, nil
	return c.snapshot, found
}

func (c *Cache) buildEntry(b *dataplane.Builder, e *entry) bool {
	ports, health, found := c.evaluate(e)
	changed := false
	for _, old := range e.ports {
		if !slices.ContainsFunc(ports, func(p *dataplane.ServicePort) bool { return p.Name == old.Name }) {
			b.Delete(old.Name)
			changed = true
		}
	}
	for _, p := range ports {
		if !slices.Contains(e.ports, p) {
			b.Put(p)
			changed = true
		}
	}
	if health != e.health {
		b.PutHealthCheck(e.name, health)
		changed = true
	}
	c.problems = append(c.problems, news(e.problems, found)...)
	e.ports, e.health, e.problems = ports, health, found
	if e.empty() {
		delete(c.entries, e.name)
	}
	return changed
}
