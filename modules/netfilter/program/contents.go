package program

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/portway/portway/modules/netfilter"
)

// rules are the rules of a chain that is shared; nil if it should not exist.
func (m *model) rules(id ChainID) []netfilter.Rule {
	rules := slices.Clone(m.frame.Head[id])
	for _, b := range m.layout.Buckets[id] {
		if len(m.shared[ChainID{id.Table, b.Chain}]) > 0 {
			rules = append(rules, b.Jump)
		}
	}
	for _, s := range m.shared[id] {
		rules = append(rules, s.Rules...)
	}
	rules = append(rules, m.frame.Tail[id]...)
	if !m.lenient {
		rules = append(rules, m.frame.Late[id]...)
	}
	if rules == nil && slices.Contains(m.frame.Roots, id) {
		rules = []netfilter.Rule{}
	}
	return rules
}

// chainRules are the rules that a chain should have, whoever it belongs to.
func (m *model) chainRules(id ChainID) []netfilter.Rule {
	owner, owned := m.owners[id]
	if !owned {
		return m.rules(id)
	}
	for _, c := range m.sources[owner].Fragment().Chains {
		if c.ID == id {
			return c.Rules
		}
	}
	return nil
}

// wants tells whether the chain should exist.
func (m *model) wants(id ChainID) bool {
	_, owned := m.owners[id]
	return owned || len(m.shared[id]) > 0 || slices.Contains(m.frame.Roots, id)
}

// allDirty makes all chains that the model wants a matter of comparison.
func (m *model) allDirty() {
	for _, s := range m.sources {
		for _, c := range s.Fragment().Chains {
			m.dirty.own[c.ID] = c.Rules
		}
	}
	m.touchRoots()
	for id := range m.shared {
		m.dirty.shared[id] = true
	}
}

// digests are those of all chains that the model wants. Its own chains must be
// dirty.
func (m *model) digests(d *digester) digests {
	all := make(digests)
	for id, rules := range m.dirty.own {
		if rules != nil {
			all[id] = d.of(rules)
		}
	}
	for id := range m.shared {
		all[id] = d.of(m.rules(id))
	}
	for _, id := range m.frame.Roots {
		all[id] = d.of(m.rules(id))
	}
	return all
}

// wantSets are all sets with all entries, for a comparison with the kernel.
func (m *model) wantSets() []netfilter.Set {
	sets := slices.Collect(maps.Values(m.sets))
	at := make(map[string]int)
	for _, s := range m.layout.Sets {
		at[s.Name] = len(sets)
		sets = append(sets, s)
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
