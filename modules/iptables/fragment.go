package iptables

import (
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// translator makes fragments for one family. It is never changed: where a node
// tells origins apart in another way, it has another one.
type translator struct {
	family dataplane.Family
	local  locality
}

// source is a ServicePort as a translator sees it.
type source struct {
	*translator
	sp *dataplane.ServicePort
}

// ServicePort is the version that is translated.
func (s source) ServicePort() *dataplane.ServicePort { return s.sp }

// Fragment translates it.
func (s source) Fragment() *program.Fragment { return s.fragment(s.sp) }

// fragment translates a ServicePort. It takes no decision: which endpoints,
// which answer and which masquerade stands in the frontends' routes.
func (t *translator) fragment(sp *dataplane.ServicePort) *program.Fragment {
	f := &program.Fragment{Name: sp.Name}
	w := &writer{translator: t, sp: sp, out: f, marks: make(map[*dataplane.Pool][]netfilter.Rule)}
	for _, fe := range sp.Frontends {
		if fe.Family == t.family {
			w.frontend(fe)
		}
	}
	for _, p := range sp.Pools {
		if p.Family == t.family && w.used(p) {
			w.pool(p)
		}
	}
	return f
}

// writer translates one ServicePort into its fragment.
type writer struct {
	*translator
	sp  *dataplane.ServicePort
	out *program.Fragment
	// marks are rules that stand in front in the chain of a pool.
	marks map[*dataplane.Pool][]netfilter.Rule
	pools []*dataplane.Pool
	ext   []externalChain
	fw    []firewallChain
	deny  []denyChain
}

// used tells whether a frontend jumps to the pool.
func (w *writer) used(p *dataplane.Pool) bool { return slices.Contains(w.pools, p) }

// toPool is the jump to the chain of a pool.
func (w *writer) toPool(p *dataplane.Pool) netfilter.Target {
	if !w.used(p) {
		w.pools = append(w.pools, p)
	}
	return netfilter.Jump(poolChain(w.sp.Name, p.Scope))
}

// enter puts an entry into a shared set.
func (w *writer) enter(s set, e netfilter.SetEntry) { w.out.AddEntry(s.entry(w.family, e)) }

// entry is the change that adds an entry or takes it out.
func (s set) entry(f dataplane.Family, e netfilter.SetEntry) netfilter.SetChange {
	return netfilter.SetChange{Set: s.name(f), Type: s.kind(), Entry: e}
}
