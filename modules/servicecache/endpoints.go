package servicecache

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// candidate is an endpoint of a Service port.
type candidate struct {
	addr  netip.AddrPort
	zones zoneHints
	state
}

// join collects the endpoints of one Service port and family from the
// Service's slices, which are sorted by name. It appends to buf and returns
// one candidate for each address and port, sorted: of rivals the ready one
// wins over the serving one over the rest, then the one that does not
// terminate, then the one that comes first.
func join(from []*slice, port servicePort, f dataplane.Family, buf []candidate) []candidate {
	for _, s := range from {
		if s.family != f {
			continue
		}
		for _, p := range s.ports {
			if p.name != port.name || p.protocol != port.protocol {
				continue
			}
			for i := range s.endpoints {
				e := &s.endpoints[i]
				buf = append(buf, candidate{netip.AddrPortFrom(e.addr, p.port), e.zones, e.state})
			}
		}
	}
	slices.SortStableFunc(buf, func(a, b candidate) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return a.rank() - b.rank()
	})
	return slices.CompactFunc(buf, func(a, b candidate) bool { return a.addr == b.addr })
}

// clusterPool chooses from all candidates: the ready ones, narrowed by hints,
// or else those that terminate and still serve (KEP-1669). Nil if there are
// none.
func clusterPool(cs []candidate, f dataplane.Family, zone string) *dataplane.Pool {
	near := nearness(cs, zone)
	return pool(cs, f, dataplane.Cluster,
		func(c *candidate) bool { return c.ready && near(c) },
		func(c *candidate) bool { return c.terminates() })
}

// localPool chooses from the candidates on this node: they are cut out first,
// then the fall-back applies. Hints play no part.
func localPool(cs []candidate, f dataplane.Family) *dataplane.Pool {
	return pool(cs, f, dataplane.Local,
		func(c *candidate) bool { return c.local && c.ready },
		func(c *candidate) bool { return c.local && c.terminates() })
}

// pool holds the candidates of the first choice that finds any.
func pool(cs []candidate, f dataplane.Family, s dataplane.Scope, choices ...func(*candidate) bool) *dataplane.Pool {
	for _, chosen := range choices {
		n := 0
		for i := range cs {
			if chosen(&cs[i]) {
				n++
			}
		}
		if n == 0 {
			continue
		}
		p := &dataplane.Pool{Family: f, Scope: s, Endpoints: make([]dataplane.Endpoint, 0, n)}
		for i := range cs {
			if c := &cs[i]; chosen(c) {
				p.Endpoints = append(p.Endpoints, dataplane.Endpoint{Addr: c.addr, Weight: 1, Local: c.local})
			}
		}
		return p
	}
	return nil
}

// nearness reads the hints of the ready candidates: if each has hints for
// nodes and one names this node, those that name it; likewise for zones; else
// all. A hint that is missing anywhere means that the control plane is not
// done, and following the others would overload them.
func nearness(cs []candidate, zone string) func(*candidate) bool {
	allNodes, thisNode, allZones, thisZone := true, false, zone != "", false
	for i := range cs {
		c := &cs[i]
		if !c.ready {
			continue
		}
		allNodes = allNodes && c.nodeHints
		thisNode = thisNode || c.hintsNode
		allZones = allZones && c.zones.any()
		thisZone = thisZone || allZones && c.zones.has(zone)
	}
	switch {
	case allNodes && thisNode:
		return func(c *candidate) bool { return c.hintsNode }
	case allZones && thisZone:
		return func(c *candidate) bool { return c.zones.has(zone) }
	}
	return func(*candidate) bool { return true }
}

// serving appends the candidates to which an existing flow may go on.
func serving(cs []candidate, to []netip.AddrPort) []netip.AddrPort {
	for i := range cs {
		if cs[i].ready || cs[i].serving {
			to = append(to, cs[i].addr)
		}
	}
	return to
}

// localReady counts the distinct addresses of ready candidates on this node.
func localReady(found map[netip.Addr]bool, cs []candidate) {
	for i := range cs {
		if cs[i].ready && cs[i].local {
			found[cs[i].addr.Addr()] = true
		}
	}
}
