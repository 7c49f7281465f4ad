package netfilter

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// AddrEntry is an entry of a hash:ip set.
func AddrEntry(a netip.Addr) SetEntry { return SetEntry{Net: netip.PrefixFrom(a, a.BitLen())} }

// EntryOf is the change that adds an entry to a set or takes it out.
func (s *Set) EntryOf(e SetEntry) SetChange { return SetChange{Set: s.Name, Type: s.Type, Entry: e} }

// FixedEntries are what a snapshot wants in three sets for a family, whatever its
// ServicePorts: the addresses at which NodePorts answer, the ClusterIPs of other
// proxies, and the healthCheckNodePorts.
func FixedEntries(s *dataplane.Snapshot, f dataplane.Family, nodePortAddrs, ignored, health Set) map[SetChange]bool {
	want := make(map[SetChange]bool)
	enter := func(in *Set, a netip.Addr) {
		if dataplane.FamilyOf(a) == f {
			want[in.EntryOf(AddrEntry(a.WithZone("")))] = true
		}
	}
	for _, a := range s.Node().NodePortAddrs {
		enter(&nodePortAddrs, a)
	}
	for a := range s.Ignored() {
		enter(&ignored, a)
	}
	for _, h := range s.HealthChecks() {
		if h.Port != 0 {
			want[health.EntryOf(SetEntry{Port: h.Port})] = true
		}
	}
	return want
}

// DropUnallocated are the rules that drop what goes to addresses in ranges of
// Services that no Service has. They stand behind those that know Services.
// Addresses of this node are spared: NodeLocal DNSCache, for one, binds a ClusterIP.
func DropUnallocated(ranges []netip.Prefix) []Rule {
	rules := make([]Rule, len(ranges))
	for i, p := range ranges {
		rules[i] = Rule{
			Destination: MatchPrefix(p),
			DestType:    NotLocal,
			Comment:     "kubernetes unallocated service addresses",
			Target:      Drop(),
		}
	}
	return rules
}
