package program

import (
	"slices"
	"strings"

	"github.com/portway/portway/modules/netfilter"
)

// plan is what must be written to make the kernel equal to the model.
type plan struct {
	layout *Layout
	sets   netfilter.SetPlan
	// tables are in the order in which they are written.
	tables []netfilter.Transaction
	sums   digests // of the chains that are written
	gone   map[ChainID]bool
}

// makePlan compares what is dirty in the model with what the kernel's chains
// are known to be. After a reading everything is dirty, and the reading says
// what else there is.
func makePlan(m *model, have digests, r *reading, d *digester) *plan {
	p := &plan{layout: m.layout, sums: make(digests), gone: make(map[ChainID]bool)}
	for _, t := range m.layout.Tables {
		p.tables = append(p.tables, netfilter.Transaction{Table: t})
	}
	for id, rules := range m.dirty.own {
		p.chain(id, rules, have, d)
	}
	for id := range m.dirty.shared {
		p.chain(id, m.rules(id), have, d)
	}
	if r == nil {
		p.sets = m.dirtySets()
	} else {
		for id := range r.chains {
			if !m.wants(id) {
				p.gone[id] = true
			}
		}
		for id, rules := range r.hooks {
			p.table(id.Table).PutInFront(id.Name, rules, m.layout.jumps(id), m.layout.owns(id.Table))
		}
		p.sets = m.withDoubts(netfilter.PlanSets(m.wantSets(), r.sets))
	}
	for id := range p.gone {
		tx := p.table(id.Table)
		tx.Delete = append(tx.Delete, id.Name)
	}
	for i := range p.tables {
		sortTransaction(&p.tables[i])
	}
	return p
}

// table is the transaction of a table.
func (p *plan) table(t netfilter.Table) *netfilter.Transaction {
	return &p.tables[slices.Index(p.layout.Tables, t)]
}

// chain writes a chain if it is not as it should be; nil rules remove it.
func (p *plan) chain(id ChainID, rules []netfilter.Rule, have digests, d *digester) {
	sum, there := have[id]
	if rules == nil {
		if there {
			p.gone[id] = true
		}
		return
	}
	want := d.of(rules)
	if there && sum == want {
		return
	}
	p.sums[id] = want
	tx := p.table(id.Table)
	tx.Chains = append(tx.Chains, netfilter.Chain{Name: id.Name, Rules: rules})
}

// writes counts the rules, chains and entries that the plan changes.
func (p *plan) writes() int {
	n := p.sets.Writes()
	for i := range p.tables {
		n += p.tables[i].Writes()
	}
	return n
}

// dirtySets are the changes to sets since the kernel was last equal. Doing one
// twice does no harm, so they are also made where it is not certain.
func (m *model) dirtySets() netfilter.SetPlan {
	var p netfilter.SetPlan
	for name, have := range m.dirty.sets {
		switch s, wanted := m.sets[name]; {
		case !have.differs(wanted):
		case wanted:
			p.Create = append(p.Create, s)
		default:
			p.Destroy = append(p.Destroy, name)
		}
	}
	for e, have := range m.dirty.entries {
		switch wanted := m.entries[e] > 0; {
		case !have.differs(wanted):
		case wanted:
			p.Add = append(p.Add, e)
		default:
			p.Remove = append(p.Remove, e)
		}
	}
	slices.SortFunc(p.Create, func(a, b netfilter.Set) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(p.Destroy)
	slices.SortFunc(p.Add, compareChanges)
	slices.SortFunc(p.Remove, compareChanges)
	return p
}

// withDoubts adds to what a comparison found what must go because an earlier
// attempt of this Sync, after the reading, may have made it.
func (m *model) withDoubts(p netfilter.SetPlan) netfilter.SetPlan {
	for name, have := range m.dirty.sets {
		if _, wanted := m.sets[name]; have == unknown && !wanted {
			p.Destroy = append(p.Destroy, name)
		}
	}
	for e, have := range m.dirty.entries {
		if have == unknown && m.entries[e] == 0 {
			p.Remove = append(p.Remove, e)
		}
	}
	return p
}

func compareChanges(a, b netfilter.SetChange) int {
	if c := strings.Compare(a.Set, b.Set); c != 0 {
		return c
	}
	return compareEntries(a.Entry, b.Entry)
}

// sortTransaction makes equal plans print equal bytes.
func sortTransaction(tx *netfilter.Transaction) {
	slices.SortFunc(tx.Chains, func(a, b netfilter.Chain) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(tx.Delete)
	byChain := func(a, b netfilter.PlacedRule) int { return strings.Compare(a.Chain, b.Chain) }
	slices.SortStableFunc(tx.Remove, byChain)
	slices.SortStableFunc(tx.Insert, byChain)
}
