package servicecache

import (
	"fmt"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// Explain says why a verdict about a flow to a Service port is as it is. It is
// false if the cache knows nothing of that port, or has another opinion of it
// by now: then the verdict is out of date.
func (c *Cache) Explain(v dataplane.Verdict) (dataplane.Reasons, bool) {
	if v.ServicePort == nil {
		return dataplane.Reasons{}, false
	}
	e := c.entries[v.ServicePort.Name.Service()]
	if e == nil || !slices.Contains(e.ports, v.ServicePort) {
		return dataplane.Reasons{}, false
	}
	x := &explanation{c: c, e: e, family: v.Frontend.Family}
	x.port = e.spec.ports[slices.IndexFunc(e.spec.ports, func(p servicePort) bool {
		return p.name == v.ServicePort.Name.Port && p.protocol == v.ServicePort.Name.Protocol
	})]
	p := &policy{
		internalLocal: e.spec.internalLocal, externalLocal: e.spec.externalLocal,
		masqueradeAll: c.MasqueradeAll, dropEmptyLocal: c.DropEmptyLocal, detects: *c.node.detects.of(x.family),
	}
	r := p.rule(v.Frontend.Kind, v.Origin)
	x.reasons.Policy = r.why
	x.consider(r.scope)
	x.notes()
	return x.reasons, true
}

// explanation is the making of reasons.
type explanation struct {
	c       *Cache
	e       *entry
	port    servicePort
	family  dataplane.Family
	reasons dataplane.Reasons
}

// consider tells of each endpoint whether it is chosen, by the same choices
// that made the pool.
func (x *explanation) consider(s dataplane.Scope) {
	cs := collect(x.e.slices, x.port, x.family, nil)
	winners := slices.CompactFunc(slices.Clone(cs), func(a, b candidate) bool { return a.addr == b.addr })
	chosen, any := choice{}, false
	for _, ch := range choices(s, winners, x.c.node.zone) {
		any = slices.ContainsFunc(winners, func(c candidate) bool { return ch.takes(&c) })
		if chosen.takes == nil || any {
			chosen = ch
		}
		if any {
			break
		}
	}
	x.reasons.Choice = chosen.what
	if !any {
		x.reasons.Choice = "none is left of the " + chosen.what
	}
	for i := range cs {
		x.reasons.Endpoints = append(x.reasons.Endpoints, x.considered(cs, i, chosen))
	}
}

func (x *explanation) considered(cs []candidate, i int, chosen choice) dataplane.Considered {
	c := &cs[i]
	k := dataplane.Considered{
		Addr: c.addr, Slice: x.e.slices[c.slice].name.name,
		Ready: c.ready, Serving: c.serving, Terminating: c.terminating, Local: c.local,
	}
	switch {
	case i > 0 && cs[i-1].addr == c.addr:
		winner := i - 1
		for winner > 0 && cs[winner-1].addr == c.addr {
			winner--
		}
		k.Why = "EndpointSlice " + x.e.slices[cs[winner].slice].name.name + " lists it too, and counts"
	case chosen.takes(c):
		k.In, k.Why = true, "it is one of the "+chosen.what
	default:
		k.Why = chosen.lacks(c)
	}
	return k
}

// notes tells of slices that do not have the port, and of what is not served as
// it is asked for.
func (x *explanation) notes() {
	note := func(format string, args ...any) {
		x.reasons.Notes = append(x.reasons.Notes, fmt.Sprintf(format, args...))
	}
	for _, s := range x.e.slices {
		if s.family != x.family {
			continue
		}
		if !slices.ContainsFunc(s.ports, func(p slicePort) bool { return p.name == x.port.name && p.protocol == x.port.protocol }) {
			note("EndpointSlice %s has no port %q of %s: its %d endpoints do not count", s.name.name, x.port.name, x.port.protocol, len(s.endpoints))
		}
	}
	for _, p := range slices.Concat(x.e.spec.problems, x.e.problems) {
		note("%s", p)
	}
	for _, s := range x.e.slices {
		for _, p := range s.problems {
			note("%s", p)
		}
	}
}
