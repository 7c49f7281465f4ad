package iptables

import (
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// The rules of a table change at once, but tables and sets change one after
// the other, and each step may be the last one for a while. So the steps are
// in an order in which a flow always ends as the old or as the new snapshot
// says:
//
//  1. entries that refuse are added: they concern no flow that is translated;
//     addresses that lose their meaning are taken out;
//  2. the filter table, then the nat table;
//  3. addresses that have a meaning now are added, entries that refuse are
//     taken out, sets that no rule names any more are destroyed.

// givesMeaning tells whether an entry makes more of an address than what its
// frontends make of it.
func givesMeaning(f dataplane.Family, set string) bool {
	return set == setClusterIP.name(f) || set == setNodeIP.name(f)
}

// around cuts a plan for sets into what comes before the rules and after them.
func around(f dataplane.Family, p netfilter.SetPlan) (before, after netfilter.SetPlan) {
	return p.Around(func(set string) bool { return givesMeaning(f, set) })
}
