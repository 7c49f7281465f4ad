package program

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Audit reads the kernel and says how it differs from what the snapshot wants.
// If that is what the last Sync applied, only what somebody may have written
// since is read. A source with an error is compared as far as it goes.
func (p *Program) Audit(ctx context.Context, w Wish) ([]dataplane.Difference, error) {
	if p.model != nil && p.last == w.Want {
		return p.auditLast(ctx)
	}
	m := newModel(p.Layout, w.Frame)
	m.setFixed(p.Layout.Fixed(w.Want))
	refused := make(map[dataplane.ServicePortName]error)
	for sp := range w.Want.ServicePorts() {
		source, err := w.Source(sp)
		if conflict := m.put(source); conflict != nil {
			err = conflict
		}
		if err != nil {
			refused[sp.Name] = err
		}
	}
	own := &Program{Layout: p.Layout, Kernel: p.Kernel, digest: newDigester()}
	expect := m.digests(own.digest)
	r, err := reader{own, expect, nil}.read(ctx)
	if err != nil {
		return nil, err
	}
	return sorted(append(refusals(refused), differences(m, expect, r)...)), nil
}

// auditLast audits what the last Sync applied.
func (p *Program) auditLast(ctx context.Context) ([]dataplane.Difference, error) {
	r, err := p.look(ctx, nil)
	if err != nil {
		return nil, err
	}
	found := differences(p.model, p.have, r)
	if !r.remembered && len(found) > 0 {
		p.witness = witness{} // the rules are known, and not as we left them
	}
	return sorted(append(refusals(p.failed), found...)), nil
}

// refusals are ServicePorts that are not in the kernel, or not in this version.
// What a mode cannot do and declares is no difference.
func refusals(failed map[dataplane.ServicePortName]error) []dataplane.Difference {
	var all []dataplane.Difference
	for name, err := range failed {
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		all = append(all, dataplane.Difference{Object: "service port", ServicePort: name, Want: err.Error()})
	}
	return all
}

func sorted(all []dataplane.Difference) []dataplane.Difference {
	slices.SortFunc(all, func(a, b dataplane.Difference) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// differences are sorted by object. The reading must have been made with the
// digests that the model has.
func differences(m *model, expect digests, r *reading) []dataplane.Difference {
	var all []dataplane.Difference
	for id := range expect {
		if _, there := r.chains[id]; !there {
			all = append(all, dataplane.Difference{
				Object: id.String(), ServicePort: m.owners[id], Want: count(len(m.chainRules(id)), "rule"),
			})
		}
	}
	for id, rules := range r.odd {
		if _, wanted := expect[id]; wanted {
			all = append(all, m.ruleDifferences(id, m.chainRules(id), rules)...)
		} else {
			all = append(all, dataplane.Difference{Object: id.String(), Have: count(len(rules), "rule")})
		}
	}
	for id, rules := range r.hooks {
		if want := m.layout.jumps(id); !netfilter.InFront(rules, want, m.layout.owns(id.Table)) {
			ours := slices.DeleteFunc(slices.Clone(rules), func(r netfilter.Rule) bool { return !m.layout.owns(id.Table)(r) })
			all = append(all, dataplane.Difference{
				Object: id.String() + ", our jumps in front", Want: text(want), Have: text(ours),
			})
		}
	}
	return sorted(append(all, m.setDifferences(r.sets)...))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func text(rules []netfilter.Rule) string {
	all := make([]string, len(rules))
	for i := range rules {
		all[i] = rules[i].String()
	}
	return strings.Join(all, "; ")
}

// ruleDifferences names each rule that is missing or superfluous in a chain,
// or says that they are in the wrong order.
func (m *model) ruleDifferences(id ChainID, want, have []netfilter.Rule) []dataplane.Difference {
	if len(have) == 0 { // flushed
		return []dataplane.Difference{{
			Object: id.String(), ServicePort: m.owners[id], Want: count(len(want), "rule"), Have: "empty",
		}}
	}
	balance := make(map[netfilter.Rule]int)
	for _, r := range want {
		balance[r]++
	}
	for _, r := range have {
		balance[r]--
	}
	var all []dataplane.Difference
	for r, n := range balance {
		d := dataplane.Difference{Object: id.String(), ServicePort: m.ownerOf(id, r)}
		switch {
		case n > 0:
			d.Want = r.String()
		case n < 0:
			d.Have = r.String()
		default:
			continue
		}
		all = append(all, d)
	}
	if all == nil {
		all = append(all, dataplane.Difference{
			Object: id.String() + ", order of rules", ServicePort: m.owners[id], Want: text(want), Have: text(have),
		})
	}
	return all
}

// ownerOf names whom a rule serves.
func (m *model) ownerOf(id ChainID, r netfilter.Rule) dataplane.ServicePortName {
	for _, s := range m.shared[id] {
		if slices.Contains(s.Rules, r) {
			return s.Owner
		}
	}
	return m.owners[id]
}

func (m *model) setDifferences(have []netfilter.Set) []dataplane.Difference {
	plan := netfilter.PlanSets(m.wantSets(), have)
	if plan.IsEmpty() {
		return nil
	}
	sets, entries := m.setOwners()
	var all []dataplane.Difference
	add := func(set string, owner dataplane.ServicePortName, want, have string) {
		all = append(all, dataplane.Difference{Object: "ipset " + set, ServicePort: owner, Want: want, Have: have})
	}
	for _, s := range plan.Create {
		add(s.Name, sets[s.Name], count(len(s.Entries), "member"), "")
	}
	for _, s := range plan.Replace {
		add(s.Name, sets[s.Name], "a set of type "+string(s.Type)+" as we make it", "another one")
	}
	for _, c := range plan.Add {
		add(c.Set, entries[c], c.EntryText(), "")
	}
	for _, c := range plan.Remove {
		add(c.Set, dataplane.ServicePortName{}, "", c.EntryText())
	}
	for _, name := range plan.Destroy {
		add(name, dataplane.ServicePortName{}, "", "a set")
	}
	return all
}

// setOwners tells whom sets and entries serve; one of them where they are
// several.
func (m *model) setOwners() (map[string]dataplane.ServicePortName, map[netfilter.SetChange]dataplane.ServicePortName) {
	sets := make(map[string]dataplane.ServicePortName)
	entries := make(map[netfilter.SetChange]dataplane.ServicePortName)
	for name, source := range m.sources {
		f := source.Fragment()
		for _, s := range f.Sets {
			sets[s.Name] = name
		}
		for _, e := range f.Entries {
			if other, taken := entries[e]; !taken || name.Compare(other) < 0 {
				entries[e] = name
			}
		}
	}
	return sets, entries
}
