package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A Builder collects the changes that make one snapshot out of another. It is
// not safe for concurrent use.
type Builder struct {
	from     *Snapshot
	node     *Node
	since    time.Time
	triggers []time.Time
	ports    map[ServicePortName]*ServicePort // nil: delete
	ignored  *pedit[addrKey, bool]
	health   *pedit[ServiceName, HealthCheck]
}

// Put adds or replaces a ServicePort, which must not be changed afterwards.
func (b *Builder) Put(sp *ServicePort) { b.ports[sp.Name] = sp }

// Delete removes a ServicePort if it is there.
func (b *Builder) Delete(n ServicePortName) { b.ports[n] = nil }

// SetNode replaces the node, which must not be changed afterwards.
func (b *Builder) SetNode(n *Node) { b.node = n }

// Ignore adds or removes the ClusterIP of a Service of another proxy.
func (b *Builder) Ignore(a netip.Addr, ignored bool) {
	if ignored {
		b.ignored.put(addrKey{a}, true)
	} else {
		b.ignored.delete(addrKey{a})
	}
}

// PutHealthCheck sets the healthCheckNodePort of a Service; a zero HealthCheck
// removes it.
func (b *Builder) PutHealthCheck(n ServiceName, h HealthCheck) {
	if h == (HealthCheck{}) {
		b.health.delete(n)
	} else {
		b.health.put(n, h)
	}
}

// Changed records when a change was accepted from the API (the oldest counts)
// and the control plane's stamps of its causes.
func (b *Builder) Changed(accepted time.Time, triggers ...time.Time) {
	if !accepted.IsZero() && (b.since.IsZero() || accepted.Before(b.since)) {
		b.since = accepted
	}
	b.triggers = append(b.triggers, triggers...)
}

// Build returns the next snapshot. Each ServicePort that contradicts itself or
// claims what another one holds is left out and named in the error; all others
// are in the snapshot, which is valid also when the error is not nil. A
// version that the new one was to replace is gone.
func (b *Builder) Build() (*Snapshot, error) {
	s := &Snapshot{
		revision: b.from.revision + 1, since: b.since, triggers: b.triggers,
		node: b.node, ignored: b.ignored.done(), health: b.health.done(),
	}
	names := make([]ServicePortName, 0, len(b.ports))
	for n := range b.ports {
		names = append(names, n)
	}
	slices.SortFunc(names, ServicePortName.Compare)
	e := indexEdit{b.from.services.edit(), b.from.frontends.edit(), b.from.addrs.edit()}
	for _, n := range names {
		e.remove(n)
	}
	var errs []error
	for _, n := range names {
		if sp := b.ports[n]; sp != nil {
			if err := e.add(sp); err != nil {
				errs = append(errs, fmt.Errorf("service port %s: %w", n, err))
			}
		}
	}
	s.services, s.frontends, s.addrs = e.services.done(), e.frontends.done(), e.addrs.done()
	s.first = b.first(s, names)
	return s, errors.Join(errs...)
}

func (b *Builder) first(s *Snapshot, changed []ServicePortName) []*ServicePort {
	if !slices.ContainsFunc(changed, func(n ServicePortName) bool {
		old, _ := b.from.services.get(n)
		now, _ := s.services.get(n)
		return old != nil && old.Priority > 0 || now != nil && now.Priority > 0
	}) {
		return b.from.first
	}
	var first []*ServicePort
	seen := make(map[ServicePortName]bool)
	keep := func(n ServicePortName) {
		if sp, ok := s.services.get(n); ok && sp.Priority > 0 && !seen[n] {
			seen[n] = true
			first = append(first, sp)
		}
	}
	for _, sp := range b.from.first {
		keep(sp.Name)
	}
	for _, n := range changed {
		keep(n)
	}
	return sortedPriority(first)
}

// indexEdit keeps the three maps of ServicePorts in step.
type indexEdit struct {
	services  *pedit[ServicePortName, *ServicePort]
	frontends *pedit[FrontendKey, Match]
	addrs     *pedit[addrKey, addrUse]
}

func (e indexEdit) remove(n ServicePortName) {
	sp, ok := e.services.get(n)
	if !ok {
		return
	}
	e.services.delete(n)
	for _, f := range sp.Frontends {
		e.frontends.delete(f.Key(n.Protocol))
		e.count(f, -1)
	}
}

func (e indexEdit) add(sp *ServicePort) error {
	if err := sp.validate(); err != nil {
		return err
	}
	for _, f := range sp.Frontends {
		if m, taken := e.frontends.get(f.Key(sp.Name.Protocol)); taken {
			return fmt.Errorf("%s %s is taken by %s", f.Kind, f.Key(sp.Name.Protocol), m.ServicePort.Name)
		}
	}
	e.services.put(sp.Name, sp)
	for _, f := range sp.Frontends {
		e.frontends.put(f.Key(sp.Name.Protocol), Match{sp, f})
		e.count(f, 1)
	}
	return nil
}

func (e indexEdit) count(f *Frontend, by int) {
	if f.Kind == NodePort {
		return
	}
	k := addrKey{f.Addr}
	u, _ := e.addrs.get(k)
	if f.Kind == ClusterIP {
		u.clusterIP += by
	} else {
		u.other += by
	}
	if u.any() {
		e.addrs.put(k, u)
	} else {
		e.addrs.delete(k)
	}
}
