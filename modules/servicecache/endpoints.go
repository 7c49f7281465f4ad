package servicecache

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// candidate is an endpoint of a Service port.
type candidate struct {
	addr  netip.AddrPort
	slice int32 // index among the Service's
	zones zoneHints
	state
}

// join collects the endpoints of one Service port and family from the
// Service's slices, which are sorted by name. It appends to buf and returns
// one candidate for each address and port, sorted: of rivals the ready one
// wins over the serving one over the rest, then the one that does not
// terminate, then the one that comes first.
func join(from []*slice, port servicePort, f dataplane.Family, buf []candidate) []candidate {
	all := collect(from, port, f, buf)
	return slices.CompactFunc(all, func(a, b candidate) bool { return a.addr == b.addr })
}

// collect is join with the rivals that lose, each behind the one that wins.
func collect(from []*slice, port servicePort, f dataplane.Family, buf []candidate) []candidate {
	for n, s := range from {
		if s.family != f {
			continue
		}
		for _, p := range s.ports {
			if p.name != port.name || p.protocol != port.protocol {
				continue
			}
			for i := range s.endpoints {
				e := &s.endpoints[i]
				buf = append(buf, candidate{netip.AddrPortFrom(e.addr, p.port), int32(n), e.zones, e.state})
			}
		}
	}
	slices.SortStableFunc(buf, func(a, b candidate) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return a.rank() - b.rank()
	})
	return buf
}

// pool holds the candidates of the first choice that finds any; nil if none
// does.
func pool(cs []candidate, f dataplane.Family, s dataplane.Scope, zone string) *dataplane.Pool {
	for _, chosen := range choices(s, cs, zone) {
		n := 0
		for i := range cs {
			if chosen.takes(&cs[i]) {
				n++
			}
		}
		if n == 0 {
			continue
		}
		p := &dataplane.Pool{Family: f, Scope: s, Endpoints: make([]dataplane.Endpoint, 0, n)}
		for i := range cs {
			if c := &cs[i]; chosen.takes(c) {
				p.Endpoints = append(p.Endpoints, dataplane.Endpoint{Addr: c.addr, Weight: 1, Local: c.local})
			}
		}
		return p
	}
	return nil
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
