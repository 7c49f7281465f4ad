package dataplane

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Snapshot is everything that one node must forward, at one revision. It is
// immutable and safe for concurrent use; consecutive snapshots share all that
// did not change. Make one with [Snapshot.Edit].
type Snapshot struct {
	revision  uint64
	since     time.Time
	triggers  []time.Time
	node      *Node
	services  pmap[ServicePortName, *ServicePort]
	first     []*ServicePort // those with a priority, in order of programming
	frontends pmap[FrontendKey, Match]
	addrs     pmap[addrKey, addrUse]
	ignored   pmap[addrKey, bool]
	health    pmap[ServiceName, HealthCheck]
}

// Match is a frontend with the port that it belongs to.
type Match struct {
	ServicePort *ServicePort
	Frontend    *Frontend
}

// addrUse counts the frontends of an address.
type addrUse struct{ clusterIP, other int }

func (u addrUse) any() bool { return u.clusterIP+u.other > 0 }

// HealthCheck is the healthCheckNodePort of a Service with
// externalTrafficPolicy Local.
type HealthCheck struct {
	Port uint16
	// Serves4 and Serves6 are the families that the Service has. In others
	// nobody answers: a 503 there would be taken for the truth about it.
	Serves4, Serves6 bool
	// LocalReady4 and LocalReady6 count the distinct addresses of the ready
	// endpoints on this node, by family.
	LocalReady4, LocalReady6 int
}

// Serves tells whether the Service has a family.
func (h HealthCheck) Serves(f Family) bool {
	if f == IPv6 {
		return h.Serves6
	}
	return h.Serves4
}

// LocalReady returns the count of a family.
func (h HealthCheck) LocalReady(f Family) int {
	if f == IPv6 {
		return h.LocalReady6
	}
	return h.LocalReady4
}

// Empty returns a snapshot without Services, of an unknown node.
func Empty() *Snapshot { return &Snapshot{node: &Node{}} }

// Revision grows by one with each edit.
func (s *Snapshot) Revision() uint64 { return s.revision }

// Since is when the oldest change that this snapshot adds to its predecessor
// was accepted from the API; zero if unknown.
func (s *Snapshot) Since() time.Time { return s.since }

// Triggers are the times at which the causes of this snapshot's endpoint
// changes happened, as the control plane stamped them
// (endpoints.kubernetes.io/last-change-trigger-time).
func (s *Snapshot) Triggers() []time.Time { return s.triggers }

// Node returns what is known of the node; never nil.
func (s *Snapshot) Node() *Node { return s.node }

// Len returns the number of ServicePorts.
func (s *Snapshot) Len() int { return s.services.len() }

// ServicePorts yields all ServicePorts in the order of programming: higher
// Priority first, the rest in an order that depends on the names alone.
func (s *Snapshot) ServicePorts() iter.Seq[*ServicePort] {
	return func(yield func(*ServicePort) bool) {
		for _, sp := range s.first {
			if !yield(sp) {
				return
			}
		}
		for _, sp := range s.services.all() {
			if sp.Priority == PriorityNormal && !yield(sp) {
				return
			}
		}
	}
}

// ServicePort returns the port of that name.
func (s *Snapshot) ServicePort(n ServicePortName) (*ServicePort, bool) { return s.services.get(n) }

// Lookup returns who claims an address, port and protocol.
func (s *Snapshot) Lookup(k FrontendKey) (Match, bool) { return s.frontends.get(k) }

// IsClusterIP tells whether an address is the ClusterIP of a Service.
func (s *Snapshot) IsClusterIP(a netip.Addr) bool {
	u, _ := s.addrs.get(addrKey{a})
	return u.clusterIP > 0
}

// IsServiceIP tells whether an address is a ClusterIP, LoadBalancer IP or
// externalIP of a Service.
func (s *Snapshot) IsServiceIP(a netip.Addr) bool {
	u, _ := s.addrs.get(addrKey{a})
	return u.any()
}

// IsIgnored tells whether an address is the ClusterIP of a Service that is
// left to another proxy.
func (s *Snapshot) IsIgnored(a netip.Addr) bool {
	v, _ := s.ignored.get(addrKey{a})
	return v
}

// ClusterIPs yields the ClusterIPs of all Services that have one of our ports.
func (s *Snapshot) ClusterIPs() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for k, u := range s.addrs.all() {
			if u.clusterIP > 0 && !yield(k.Addr) {
				return
			}
		}
	}
}

// Ignored yields the ClusterIPs of Services that are left to another proxy.
func (s *Snapshot) Ignored() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for k := range s.ignored.all() {
			if !yield(k.Addr) {
				return
			}
		}
	}
}

// HealthChecks yields the healthCheckNodePorts.
func (s *Snapshot) HealthChecks() iter.Seq2[ServiceName, HealthCheck] { return s.health.all() }

// A Change is a ServicePort that two snapshots hold in different versions; Old
// or New is nil where one of them does not have it.
type Change struct {
	Name     ServicePortName
	Old, New *ServicePort
}

// ChangesSince yields what differs between the older snapshot (nil is empty)
// and this one, in the order of programming, at a cost that depends on the
// number of changes and hardly on the number of ServicePorts.
func (s *Snapshot) ChangesSince(older *Snapshot) iter.Seq[Change] {
	if older == nil {
		older = Empty()
	}
	return func(yield func(Change) bool) {
		for _, sp := range s.first {
			old, _ := older.services.get(sp.Name)
			if old != sp && !yield(Change{sp.Name, old, sp}) {
				return
			}
		}
		for n, v := range pdiff(older.services, s.services) {
			if v[1] != nil && v[1].Priority != PriorityNormal {
				continue
			}
			if !yield(Change{n, v[0], v[1]}) {
				return
			}
		}
	}
}

// ClusterIPChangesSince yields the ClusterIPs that came (true) or went (false)
// since the older snapshot (nil is empty).
func (s *Snapshot) ClusterIPChangesSince(older *Snapshot) iter.Seq2[netip.Addr, bool] {
	if older == nil {
		older = Empty()
	}
	return func(yield func(netip.Addr, bool) bool) {
		for k, v := range pdiff(older.addrs, s.addrs) {
			was, is := v[0].clusterIP > 0, v[1].clusterIP > 0
			if was != is && !yield(k.Addr, is) {
				return
			}
		}
	}
}

// IgnoredChangesSince yields the ignored ClusterIPs that came (true) or went
// (false) since the older snapshot (nil is empty).
func (s *Snapshot) IgnoredChangesSince(older *Snapshot) iter.Seq2[netip.Addr, bool] {
	if older == nil {
		older = Empty()
	}
	return func(yield func(netip.Addr, bool) bool) {
		for k, v := range pdiff(older.ignored, s.ignored) {
			if !yield(k.Addr, v[1]) {
				return
			}
		}
	}
}

// HealthChecksEqual tells whether two snapshots have the same
// healthCheckNodePorts.
func (s *Snapshot) HealthChecksEqual(o *Snapshot) bool {
	for range pdiff(s.health, o.health) {
		return false
	}
	return true
}

// Edit starts the next snapshot. The receiver stays as it is.
func (s *Snapshot) Edit() *Builder {
	return &Builder{
		from:    s,
		node:    s.node,
		ports:   make(map[ServicePortName]*ServicePort),
		ignored: s.ignored.edit(),
		health:  s.health.edit(),
	}
}

// orderOfProgramming sorts by descending priority, then name.
func orderOfProgramming(a, b *ServicePort) int {
	if c := cmp.Compare(b.Priority, a.Priority); c != 0 {
		return c
	}
	return a.Name.Compare(b.Name)
}

func sortedPriority(first []*ServicePort) []*ServicePort {
	slices.SortFunc(first, orderOfProgramming)
	return first
}
