package ipvs

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// have is a virtual server of ours as the kernel has confirmed it.
type have struct {
	how   kernel.Server
	reals []haveReal // sorted by address
	place int        // in the kernel's own order; 0: not known
}

type haveReal struct {
	addr   netip.AddrPort
	weight int
	// odd: somebody changed it in another way than its weight.
	odd bool
}

func asHave(v *kernel.VirtualServer) *have {
	h := &have{how: v.Server, place: v.Place, reals: make([]haveReal, len(v.Reals))}
	for i := range v.Reals {
		r := &v.Reals[i]
		h.reals[i] = haveReal{r.Addr, r.Weight, !r.AsAdded()}
	}
	return h
}

func (h *have) find(a netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(h.reals, a, func(r haveReal, a netip.AddrPort) int { return r.addr.Compare(a) })
}

// draining tells whether all that is left of it drains.
func (h *have) draining() bool {
	return len(h.reals) > 0 && !slices.ContainsFunc(h.reals, func(r haveReal) bool { return r.weight != 0 })
}

// serverPlan is what must be done to virtual servers: what is added before
// flows are sent there, and what is taken out after they are sent elsewhere.
type serverPlan struct {
	grow, shrink []kernel.Op
}

// planServer compares one virtual server with what there is of it. Real servers
// that leave a server of which IPVS sees each packet get weight 0, and go when
// their connections have ended (kubernetes#57841); others go at once: UDP must
// (kubernetes#71514), and behind an alias established flows do not need IPVS.
func (p *serverPlan) planServer(k kernel.Key, want *server, h *have) {
	switch {
	case want == nil && h == nil, want != nil && want.pool == nil && h == nil:
		return
	case want == nil, want.pool == nil && !want.drains, want.pool == nil && len(h.reals) == 0:
		p.shrink = append(p.shrink, kernel.Op{Verb: kernel.DeleteServer, Key: k})
		return
	case h == nil:
		p.grow = append(p.grow, kernel.Op{Verb: kernel.AddServer, Key: k, Server: want.how})
		h = &have{}
	case want.pool != nil && h.how != want.how:
		p.grow = append(p.grow, kernel.Op{Verb: kernel.SetServer, Key: k, Server: want.how})
	}
	p.addReals(k, want, h)
	p.removeReals(k, want, h)
}

func (p *serverPlan) addReals(k kernel.Key, want *server, h *have) {
	if want.pool == nil {
		return
	}
	for _, e := range want.pool.Endpoints {
		op := kernel.Op{Verb: kernel.AddReal, Key: k, Real: e.Addr, Weight: int(e.Weight)}
		if i, ok := h.find(e.Addr); ok {
			if r := h.reals[i]; r.weight == op.Weight && !r.odd {
				continue
			}
			op.Verb = kernel.SetReal
		}
		p.grow = append(p.grow, op)
	}
}

func (p *serverPlan) removeReals(k kernel.Key, want *server, h *have) {
	for _, r := range h.reals {
		if want.wants(r.addr) {
			continue
		}
		switch {
		case !want.drains:
			p.shrink = append(p.shrink, kernel.Op{Verb: kernel.DeleteReal, Key: k, Real: r.addr})
		case r.weight != 0:
			p.shrink = append(p.shrink, kernel.Op{Verb: kernel.SetReal, Key: k, Real: r.addr})
		}
	}
}

// wants tells whether a real server takes new flows.
func (s *server) wants(a netip.AddrPort) bool {
	if s.pool == nil {
		return false
	}
	_, ok := s.pool.Find(a)
	return ok
}

// planServers compares the virtual servers that are dirty.
func planServers(m *model, keys []kernel.Key, state map[kernel.Key]*have) serverPlan {
	var p serverPlan
	for _, k := range keys {
		var want *server
		if s, ok := m.servers[k]; ok {
			want = &s
		}
		p.planServer(k, want, state[k])
	}
	return p
}

// lostOf are the virtual servers that are no longer there, of those whose place is
// known.
func lostOf(before, now map[kernel.Key]*have) map[kernel.Key]int {
	lost := make(map[kernel.Key]int)
	for k, h := range before {
		if now[k] == nil && h.place > 0 {
			lost[k] = h.place
		}
	}
	return lost
}

// inOrderOfTrash puts virtual servers that were lost into the order in which the
// kernel finds their real servers soonest. For one or two minutes it keeps each
// that was deleted on one list, the latest in front (ip_vs_trash_get_dest), and
// goes through that list whenever one is added. "ipvsadm -C" deletes in the
// kernel's own order; of 10,000 virtual servers with five real servers each, added
// in another order, the list costs more than a minute.
func (s *pass) inOrderOfTrash(keys []kernel.Key) []kernel.Key {
	if len(s.lost) > 0 {
		slices.SortStableFunc(keys, func(a, b kernel.Key) int { return s.lost[b] - s.lost[a] })
	}
	return keys
}

// planLocals compares addresses: those that must be local, of those the ones that
// then need not be bound, as kube-proxy had them, and those that must not be local
// any more.
func planLocals(m *model, addrs []netip.Addr, state map[netip.Addr]kernel.Local) (put, unbind, remove []kernel.LocalOp) {
	for _, a := range addrs {
		want := localRoute(a)
		h, there := state[a]
		switch wanted := m.locals[a] > 0; {
		case wanted && (!there || h != want):
			put = append(put, kernel.LocalOp{Local: want})
			if h.Bound {
				unbind = append(unbind, kernel.LocalOp{Local: h, Delete: true})
			}
		case !wanted && there:
			remove = append(remove, kernel.LocalOp{Local: h, Delete: true})
		}
	}
	return put, unbind, remove
}

// localRoute makes an address local by a route. See DESIGN.md for why no
// address is bound to the device.
func localRoute(a netip.Addr) kernel.Local {
	return kernel.Local{Prefix: netip.PrefixFrom(a, a.BitLen())}
}

// apply keeps the record of what the kernel has in step with an op that it
// confirmed.
func apply(state map[kernel.Key]*have, op kernel.Op) {
	h := state[op.Key]
	switch op.Verb {
	case kernel.AddServer:
		state[op.Key] = &have{how: op.Server}
	case kernel.DeleteServer:
		delete(state, op.Key)
	case kernel.SetServer:
		if h != nil {
			h.how = op.Server
		}
	default:
		if h != nil {
			h.apply(op)
		}
	}
}

func (h *have) apply(op kernel.Op) {
	i, ok := h.find(op.Real)
	switch {
	case op.Verb == kernel.DeleteReal && ok:
		h.reals = slices.Delete(h.reals, i, i+1)
	case op.Verb == kernel.DeleteReal:
	case ok:
		h.reals[i] = haveReal{addr: op.Real, weight: op.Weight}
	default:
		h.reals = slices.Insert(h.reals, i, haveReal{addr: op.Real, weight: op.Weight})
	}
}

// owner tells whom a virtual server serves; zero if nobody any more.
func (m *model) owner(k kernel.Key) dataplane.ServicePortName { return m.servers[k].owner }
