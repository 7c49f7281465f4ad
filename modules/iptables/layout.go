package iptables

import (
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// Flows find their frontend through buckets: KUBE-SERVICES knows the last byte
// of the destination, KUBE-NODEPORTS ranges of 128 ports; see DESIGN.md for what
// that costs. KUBE-PROXY-FIREWALL has buckets, too.

func natServices() program.ChainID { return program.ChainID{Table: netfilter.NAT, Name: chainServices} }

func natNodePorts() program.ChainID {
	return program.ChainID{Table: netfilter.NAT, Name: chainNodePorts}
}

func filterFirewall() program.ChainID {
	return program.ChainID{Table: netfilter.Filter, Name: chainFirewall}
}

// layout is what the mode has on every node. In mangle that is only a chain of
// kube-proxy, which is removed.
func layout(f dataplane.Family) *program.Layout {
	l := &program.Layout{
		Mode: Name, Family: f,
		Tables: []netfilter.Table{netfilter.Mangle, netfilter.Filter, netfilter.NAT},
		Hooks:  hooks(),
		Buckets: map[program.ChainID][]program.Bucket{
			natServices():    program.AddrBuckets(chainServices, f),
			natNodePorts():   program.PortBuckets(chainNodePorts),
			filterFirewall(): program.AddrBuckets(chainFirewall, f),
		},
		GivesMeaning: func(name string) bool { return name == setClusterIP.name(f) || name == setNodeIP.name(f) },
		TakeOver:     func(name string) bool { return name == setNodeIP.name(f) },
		OwnsChain:    ownsChain,
		OwnsSet:      func(name string) bool { return ownsSet(f, name) },
		Alive:        natServices(),
		Fixed:        func(s *dataplane.Snapshot) map[netfilter.SetChange]bool { return fixedEntries(s, f) },
	}
	for _, s := range sharedSets() {
		l.Sets = append(l.Sets, s.empty(f))
	}
	return l
}

// fixedEntries come from no ServicePort.
func fixedEntries(s *dataplane.Snapshot, f dataplane.Family) map[netfilter.SetChange]bool {
	return netfilter.FixedEntries(s, f, setNodeIP.empty(f), setIgnored.empty(f), setHealth.empty(f))
}
