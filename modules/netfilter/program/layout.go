package program

import (
	"maps"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// ChainID names a chain of a table.
type ChainID struct {
	Table netfilter.Table
	Name  string
}

// String returns "nat chain NAME".
func (id ChainID) String() string { return string(id.Table) + " chain " + id.Name }

// Hook is a chain of the kernel with the jumps of ours that stand first in it.
type Hook struct {
	ID    ChainID
	Jumps []netfilter.Rule
}

// Layout is what a mode has in the kernel whatever the node and its Services
// are. It does not change once a Program was made with it.
type Layout struct {
	// Mode is the mode's name, for errors.
	Mode   string
	Family dataplane.Family
	// Tables are those in which the mode owns chains, in the order of writing:
	// one that refuses what another one does not translate comes before it.
	Tables []netfilter.Table
	Hooks  []Hook
	// Buckets are the chains that a chain leads to while they are in use.
	Buckets map[ChainID][]Bucket
	// Sets are those that ServicePorts share, as they are made: empty.
	Sets []netfilter.Set
	// GivesMeaning tells of which sets the entries make more of an address than
	// its frontends do; see [netfilter.SetPlan.Around].
	GivesMeaning func(set string) bool
	// TakeOver tells of which of those the entries must be there before the
	// rules when the set is made: where the rules of a kube-proxy are taken
	// over, what they gave a meaning would have none until then. No rule names
	// a set that is made only now, so its entries change nothing by themselves.
	// May be nil.
	TakeOver func(set string) bool
	// OwnsChain and OwnsSet tell what is the mode's by its name, what it will
	// never have included: that is removed.
	OwnsChain func(t netfilter.Table, name string) bool
	OwnsSet   func(name string) bool
	// Alive is a chain that exists once the mode has worked here. Without it a
	// start is cold: see [Program.Sync].
	Alive ChainID
	// Fixed are the entries of shared sets that no ServicePort is the cause of.
	// They depend on the node, ignored ClusterIPs and health checks alone.
	Fixed func(*dataplane.Snapshot) map[netfilter.SetChange]bool
}

// Frame is what depends on the node and not on any Service.
type Frame struct {
	// Roots are the chains that exist always. Chains in the maps are of them.
	Roots []ChainID
	// Head stands in a chain in front of all else, Tail after the jumps to
	// buckets and what ServicePorts put there.
	Head, Tail map[ChainID][]netfilter.Rule
	// Late is the very last. It refuses what no Service has, so on a cold start
	// it is written when all are known.
	Late map[ChainID][]netfilter.Rule
}

func (f Frame) equal(o Frame) bool {
	same := func(a, b map[ChainID][]netfilter.Rule) bool {
		return maps.EqualFunc(a, b, slices.Equal[[]netfilter.Rule])
	}
	return slices.Equal(f.Roots, o.Roots) && same(f.Head, o.Head) && same(f.Tail, o.Tail) && same(f.Late, o.Late)
}

// parents tells which chain leads to each bucket.
func (l *Layout) parents() map[ChainID]ChainID {
	all := make(map[ChainID]ChainID)
	for root, buckets := range l.Buckets {
		for _, b := range buckets {
			all[ChainID{root.Table, b.Chain}] = root
		}
	}
	return all
}

// jumps are those that must stand first in a hook.
func (l *Layout) jumps(id ChainID) []netfilter.Rule {
	for _, h := range l.Hooks {
		if h.ID == id {
			return h.Jumps
		}
	}
	return nil
}

// owns tells which rules in chains of others are the mode's.
func (l *Layout) owns(t netfilter.Table) func(netfilter.Rule) bool {
	return func(r netfilter.Rule) bool {
		jump := r.Target.Kind == netfilter.TargetJump || r.Target.Kind == netfilter.TargetGoto
		return jump && l.OwnsChain(t, r.Target.Name)
	}
}

// givesMeaning is GivesMeaning for one plan.
func (l *Layout) givesMeaning(p netfilter.SetPlan) func(set string) bool {
	if l.TakeOver == nil {
		return l.GivesMeaning
	}
	return func(set string) bool {
		isNew := slices.ContainsFunc(p.Create, func(s netfilter.Set) bool { return s.Name == set })
		return l.GivesMeaning(set) && !(isNew && l.TakeOver(set))
	}
}
