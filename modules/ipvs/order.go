package ipvs

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Sets, virtual servers and rules change one after the other, and each step
// may be the last one for a while. So the steps are in an order in which a flow
// always ends as the old or as the new snapshot says:
//
//  1. sets are made; entries that refuse, restrict or masquerade are added;
//  2. aliases become local, virtual servers and real servers are added;
//  3. rules; where there are none yet, before all entries, and once more in the
//     end, if until then they yield to another mode's;
//  4. ClusterIPs stop being local;
//  5. entries that send flows to virtual servers, or let them pass to those, are
//     added, then taken out;
//  6. ClusterIPs become local, and then bound no more, as kube-proxy had them;
//  7. real servers, virtual servers and aliases are taken out;
//  8. what 1 adds is taken out.
//
// Among the entries of a step the order of sets() counts, and its reverse for
// those that are taken out: a frontend is known to be restricted before it is
// known, and a frontend with an address of its own is served before NodePorts
// stop answering there. A ClusterIP is local only while its other ports are
// refused: otherwise the node would answer there as at its own addresses.

// meaning is the first set whose entries send flows to virtual servers.
const meaning = setBalancerL

// ranks are the places of sets in sets(), by their kernel names.
type ranks struct {
	of      map[string]int
	meaning int
}

func newRanks(f dataplane.Family) ranks {
	r := ranks{of: make(map[string]int)}
	for i, s := range sets() {
		r.of[s.name(f)] = i
		if s == meaning {
			r.meaning = i
		}
	}
	return r
}

// cut sorts a plan and cuts it into what comes before virtual servers are
// added, between, and after they are taken out.
func (r ranks) cut(p netfilter.SetPlan) (before, between, after netfilter.SetPlan) {
	before.Replace, after.Destroy = p.Replace, p.Destroy
	add, remove := slices.Clone(p.Add), slices.Clone(p.Remove)
	for _, s := range p.Create {
		for _, e := range s.Entries {
			add = append(add, netfilter.SetChange{Set: s.Name, Type: s.Type, Entry: e})
		}
		s.Entries = nil
		before.Create = append(before.Create, s)
	}
	slices.SortFunc(add, r.compare)
	slices.SortFunc(remove, func(a, b netfilter.SetChange) int { return r.compare(b, a) })
	i, _ := slices.BinarySearchFunc(add, r.meaning, r.rank)
	before.Add, between.Add = add[:i], add[i:]
	for _, c := range remove {
		if r.of[c.Set] >= r.meaning {
			between.Remove = append(between.Remove, c)
		} else {
			after.Remove = append(after.Remove, c)
		}
	}
	return before, between, after
}

func (r ranks) rank(c netfilter.SetChange, rank int) int { return cmp.Compare(r.of[c.Set], rank) }

func (r ranks) compare(a, b netfilter.SetChange) int {
	return cmp.Or(cmp.Compare(r.of[a.Set], r.of[b.Set]), compareEntries(a.Entry, b.Entry))
}

func compareEntries(a, b netfilter.SetEntry) int {
	return cmp.Or(
		a.Net.Addr().Compare(b.Net.Addr()), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port),
		a.Second.Compare(b.Second), comparePrefixes(a.SecondNet, b.SecondNet),
	)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
