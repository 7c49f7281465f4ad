package userspace

import (
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// nat and filter name chains of the two tables.
func nat(chain string) program.ChainID {
	return program.ChainID{Table: netfilter.NAT, Name: chain}
}

func filter(chain string) program.ChainID {
	return program.ChainID{Table: netfilter.Filter, Name: chain}
}

// layout is what the mode has on every node. Filter is written first: it judges
// only what nat does not translate, so it may be ahead.
func layout(f dataplane.Family) *program.Layout {
	l := &program.Layout{
		Mode: Name, Family: f,
		Tables:       []netfilter.Table{netfilter.Filter, netfilter.NAT},
		Hooks:        hooks(),
		Buckets:      make(map[program.ChainID][]program.Bucket),
		GivesMeaning: func(name string) bool { return name == setClusterIP.name(f) || name == setNodeIP.name(f) },
		OwnsChain:    ownsChain,
		OwnsSet:      func(name string) bool { return ownsSet(f, name) },
		Alive:        nat(chainPortals),
		Fixed:        func(s *dataplane.Snapshot) map[netfilter.SetChange]bool { return fixedEntries(s, f) },
	}
	for _, s := range allSets() {
		l.Sets = append(l.Sets, s.empty(f))
	}
	for _, at := range []func(string) program.ChainID{nat, filter} {
		l.Buckets[at(chainPortals)] = program.AddrBuckets(chainPortals, f)
		l.Buckets[at(chainPortalsHost)] = program.AddrBuckets(chainPortalsHost, f)
		l.Buckets[at(chainNodePort)] = program.PortBuckets(bucketsNodePort)
		l.Buckets[at(chainNodePortHost)] = program.PortBuckets(bucketsNodePortHost)
	}
	return l
}

// fixedEntries come from no ServicePort.
func fixedEntries(s *dataplane.Snapshot, f dataplane.Family) map[netfilter.SetChange]bool {
	return netfilter.FixedEntries(s, f, setNodeIP.empty(f), setIgnored.empty(f), setHealth.empty(f))
}

// claimed are the frontends that the sets know.
func claimed(sets []netfilter.Set, f dataplane.Family) []dataplane.FrontendKey {
	var keys []dataplane.FrontendKey
	for _, s := range sets {
		if s.Name == setFrontend.name(f) {
			for _, e := range s.Entries {
				keys = append(keys, dataplane.FrontendKey{Addr: e.Net.Addr(), Port: e.Port, Protocol: e.Protocol})
			}
		}
		for _, p := range protocols() {
			if s.Name == setNodePort.of(p).name(f) {
				for _, e := range s.Entries {
					keys = append(keys, dataplane.FrontendKey{Addr: f.Unspecified(), Port: e.Port, Protocol: p})
				}
			}
		}
	}
	return keys
}

// hooks are the kernel's chains that lead to ours.
func hooks() []program.Hook {
	jump := func(comment, chain string, states netfilter.StateSet) netfilter.Rule {
		return netfilter.Rule{Comment: comment, Conntrack: netfilter.ConntrackMatch{States: states}, Target: netfilter.Jump(chain)}
	}
	const redirect, refuse = "kubernetes service portals", "kubernetes service portals that refuse"
	guard := jump("kubernetes listeners of service portals", chainGuard, 0)
	return []program.Hook{
		{ID: nat("PREROUTING"), Jumps: []netfilter.Rule{jump(redirect, chainPortals, 0)}},
		{ID: nat("OUTPUT"), Jumps: []netfilter.Rule{jump(redirect, chainPortalsHost, 0)}},
		{ID: filter("INPUT"), Jumps: []netfilter.Rule{guard, jump(refuse, chainPortals, netfilter.StateNew)}},
		{ID: filter("FORWARD"), Jumps: []netfilter.Rule{jump(refuse, chainPortals, netfilter.StateNew)}},
		{ID: filter("OUTPUT"), Jumps: []netfilter.Rule{jump(refuse, chainPortalsHost, netfilter.StateNew)}},
	}
}
