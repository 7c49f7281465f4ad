package iptables

import (
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// chainID names a chain of a table.
type chainID struct {
	table netfilter.Table
	name  string
}

// String returns "nat chain NAME".
func (id chainID) String() string { return string(id.table) + " chain " + id.name }

// A fragment is everything that one ServicePort needs in the kernel. It
// depends on nothing but the ServicePort and the node's view.
type fragment struct {
	name dataplane.ServicePortName
	// chains belong to the ServicePort alone.
	chains []ownChain
	// rules go into chains that it shares with others.
	rules []sharedRule
	// sets belong to the ServicePort alone; their entries are the kernel's.
	sets []netfilter.Set
	// entries go into sets that it shares with others.
	entries []netfilter.SetChange
}

type ownChain struct {
	id    chainID
	rules []netfilter.Rule
}

// sharedRule is the rule of one frontend in a chain of several. A frontend has
// no more than one in each chain.
type sharedRule struct {
	in    chainID
	key   dataplane.FrontendKey
	owner dataplane.ServicePortName
	rule  netfilter.Rule
}

func (f *fragment) addChain(t netfilter.Table, name string, rules []netfilter.Rule) {
	f.chains = append(f.chains, ownChain{chainID{t, name}, rules})
}

func (f *fragment) addRule(in chainID, k dataplane.FrontendKey, r netfilter.Rule) {
	f.rules = append(f.rules, sharedRule{in, k, f.name, r})
}

func (f *fragment) addEntry(c netfilter.SetChange) {
	if !slices.Contains(f.entries, c) {
		f.entries = append(f.entries, c)
	}
}

// translator makes fragments for one family.
type translator struct {
	family dataplane.Family
	local  locality
}

// fragment translates a ServicePort. It takes no decision: which endpoints,
// which answer and which masquerade stands in the frontends' routes.
func (t translator) fragment(sp *dataplane.ServicePort) *fragment {
	f := &fragment{name: sp.Name}
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
	translator
	sp  *dataplane.ServicePort
	out *fragment
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
func (w *writer) enter(s set, e netfilter.SetEntry) { w.out.addEntry(s.entry(w.family, e)) }

// entry is the change that adds an entry or takes it out.
func (s set) entry(f dataplane.Family, e netfilter.SetEntry) netfilter.SetChange {
	return netfilter.SetChange{Set: s.name(f), Type: s.kind(), Entry: e}
}
