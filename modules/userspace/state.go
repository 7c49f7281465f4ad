package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// state is what the kernel holds of ours. Chains are kept as text, which takes a
// fifth of the memory of rules.
type state struct {
	chains map[chainID]string
	sets   []netfilter.Set
	// hooks are the kernel's own chains, whole; nil if nothing was read.
	hooks map[chainID][]netfilter.Rule
	// listeners are where the chains of pools lead.
	listeners map[string]netip.AddrPort
}

// text is a chain as iptables-save prints it.
func text(rules []netfilter.Rule) string {
	var b []byte
	for i := range rules {
		b = append(rules[i].Append(b), '\n')
	}
	return string(b)
}

// tables are those in which we have chains, in the order of writing: filter
// judges only what nat does not translate, so it may be ahead.
func tables() []netfilter.Table { return []netfilter.Table{netfilter.Filter, netfilter.NAT} }

// read reads all that is ours.
func read(ctx context.Context, k netfilter.Kernel, f dataplane.Family) (*state, error) {
	s := &state{chains: make(map[chainID]string), hooks: make(map[chainID][]netfilter.Rule), listeners: make(map[string]netip.AddrPort)}
	for _, h := range hooks() {
		s.hooks[h.id] = nil // a table of iptables-legacy that nobody has used has no chains
	}
	for _, t := range tables() {
		err := k.Save(ctx, t, func(c netfilter.Chain) error {
			s.chain(chainID{t, c.Name}, c)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the %s table for %s: %w", t, f, err)
		}
	}
	var err error
	if s.sets, err = k.Sets(ctx, func(name string) bool { return ownsSet(f, name) }); err != nil {
		return nil, fmt.Errorf("read the ipsets for %s: %w", f, err)
	}
	return s, nil
}

func (s *state) chain(id chainID, c netfilter.Chain) {
	switch {
	case c.Policy != "":
		s.hooks[id] = slices.Clone(c.Rules)
	case ownsChain(id.table, id.name):
		s.chains[id] = text(c.Rules)
		for _, r := range c.Rules {
			if strings.HasPrefix(id.name, prefixPool) && r.Target.Kind == netfilter.TargetDNAT {
				s.listeners[id.name] = r.Target.To
			}
		}
	}
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

// plan is what must be written to make the kernel as wished.
type plan struct {
	tables []netfilter.Transaction
	sets   netfilter.SetPlan
}

// makePlan compares. Hooks are compared only if they were read.
func makePlan(want *wish, have *state) plan {
	p := plan{sets: netfilter.PlanSets(want.sets, have.sets)}
	for _, t := range tables() {
		tx := netfilter.Transaction{Table: t}
		for id, rules := range want.chains {
			if was, there := have.chains[id]; id.table == t && (!there || was != text(rules)) {
				tx.Chains = append(tx.Chains, netfilter.Chain{Name: id.name, Rules: rules})
			}
		}
		for id := range have.chains {
			if _, wanted := want.chains[id]; id.table == t && !wanted {
				tx.Delete = append(tx.Delete, id.name)
			}
		}
		for id, rules := range have.hooks {
			if id.table == t {
				tx.PutInFront(id.name, rules, jumpsOf(id), owns(t))
			}
		}
		slices.SortFunc(tx.Chains, func(a, b netfilter.Chain) int { return strings.Compare(a.Name, b.Name) })
		slices.Sort(tx.Delete)
		p.tables = append(p.tables, tx)
	}
	return p
}

func jumpsOf(id chainID) []netfilter.Rule {
	for _, h := range hooks() {
		if h.id == id {
			return h.jumps
		}
	}
	return nil
}

// writes counts the rules, chains and entries that the plan changes.
func (p plan) writes() int {
	n := p.sets.Writes()
	for i := range p.tables {
		n += p.tables[i].Writes()
	}
	return n
}

// confirmed is the state after a plan was carried out.
func confirmed(want *wish) *state {
	s := &state{chains: make(map[chainID]string, len(want.chains)), sets: want.sets}
	for id, rules := range want.chains {
		s.chains[id] = text(rules)
	}
	return s
}
