package iptables

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// setNode takes over what is new of the node. Services are translated again
// only if it tells origins apart in another way, which is rare, while its
// addresses change with each pod.
func (m *model) setNode(n *dataplane.Node) []dataplane.Failure {
	fr := newFrame(n, m.family, m.frame.randomFully)
	fr.lenient = m.frame.lenient
	if !fr.equal(m.frame) {
		m.frame = fr
		for _, id := range roots() {
			m.dirty.shared[id] = true
		}
	}
	if l := newLocality(n, m.family); !l.equal(m.local) {
		return m.relocate(l)
	}
	return nil
}

// setLenient makes the model refuse only what Services themselves refuse.
func (m *model) setLenient(lenient bool) {
	m.frame.lenient = lenient
	m.dirty.shared[chainID{netfilter.Filter, chainServices}] = true
}

func (m *model) relocate(l locality) []dataplane.Failure {
	ports := slices.SortedFunc(maps.Values(m.ports), func(a, b *dataplane.ServicePort) int {
		return a.Name.Compare(b.Name)
	})
	for _, sp := range ports {
		m.remove(sp.Name)
	}
	m.local = l
	var failed []dataplane.Failure
	for _, sp := range ports {
		if err := m.put(sp); err != nil {
			failed = append(failed, dataplane.Failure{Name: sp.Name, Err: err})
		}
	}
	return failed
}

// setFixed replaces the entries that do not come from ServicePorts.
func (m *model) setFixed(want map[netfilter.SetChange]bool) {
	for e := range m.fixed {
		if !want[e] {
			m.count(e, -1)
		}
	}
	for e := range want {
		if !m.fixed[e] {
			m.count(e, 1)
		}
	}
	m.fixed = want
}

// fixedEntries are the addresses of NodePorts, the healthCheckNodePorts and
// the ClusterIPs of other proxies.
func fixedEntries(s *dataplane.Snapshot, f dataplane.Family) map[netfilter.SetChange]bool {
	want := make(map[netfilter.SetChange]bool)
	enter := func(in set, a netip.Addr) {
		if dataplane.FamilyOf(a) == f {
			want[in.entry(f, addrEntry(a.WithZone("")))] = true
		}
	}
	for _, a := range s.Node().NodePortAddrs {
		enter(setNodeIP, a)
	}
	for a := range s.Ignored() {
		enter(setIgnored, a)
	}
	for _, h := range s.HealthChecks() {
		if h.Port != 0 {
			want[setHealth.entry(f, netfilter.SetEntry{Port: h.Port})] = true
		}
	}
	return want
}

// sameFixed tells whether two snapshots give the same fixed entries for sure.
func sameFixed(a, b *dataplane.Snapshot) bool {
	for range a.IgnoredChangesSince(b) {
		return false
	}
	return a.Node() == b.Node() && a.HealthChecksEqual(b)
}

// allDirty makes all chains that the model wants a matter of comparison.
func (m *model) allDirty() {
	for _, sp := range m.ports {
		for _, c := range m.fragment(sp).chains {
			m.dirty.own[c.id] = c.rules
		}
	}
	for _, id := range roots() {
		m.dirty.shared[id] = true
	}
	for id := range m.shared {
		m.dirty.shared[id] = true
	}
}

// wantSets are all sets with all entries, for a comparison with the kernel.
func (m *model) wantSets() []netfilter.Set {
	sets := slices.Collect(maps.Values(m.sets))
	at := make(map[string]int)
	for _, s := range sharedSets() {
		at[s.name(m.family)] = len(sets)
		sets = append(sets, s.empty(m.family))
	}
	for e := range m.entries {
		s := &sets[at[e.Set]]
		s.Entries = append(s.Entries, e.Entry)
	}
	for i := range sets {
		slices.SortFunc(sets[i].Entries, compareEntries)
	}
	slices.SortFunc(sets, func(a, b netfilter.Set) int { return strings.Compare(a.Name, b.Name) })
	return sets
}

func compareEntries(a, b netfilter.SetEntry) int {
	return cmp.Or(a.Net.Addr().Compare(b.Net.Addr()), cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.Port, b.Port), a.Second.Compare(b.Second))
}
