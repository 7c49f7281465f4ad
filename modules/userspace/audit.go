package userspace

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Audit reads the kernel and says how it, and the listeners, differ from what
// the snapshot wants.
func (p *Plane) Audit(ctx context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	have, err := read(ctx, p.kernel, p.family)
	if err != nil {
		return nil, err
	}
	wish := build(want, p.family, p.at)
	all := differences(confirmed(&wish), wish.owners, have)
	return append(all, p.listenerDifferences(want)...), nil
}

func (p *Plane) listenerDifferences(want *dataplane.Snapshot) []dataplane.Difference {
	var all []dataplane.Difference
	routes := routesOf(want, p.family)
	for k, r := range routes {
		d := dataplane.Difference{Object: fmt.Sprintf("listener of %s endpoints", k.scope), ServicePort: k.name, Want: "to " + r.String()}
		if l, ok := p.listeners[k]; ok {
			if l.Route().Equal(r) {
				continue
			}
			d.Have = "to " + l.Route().String()
		}
		all = append(all, d)
	}
	for k, l := range p.listeners {
		if _, wanted := routes[k]; !wanted {
			all = append(all, dataplane.Difference{
				Object: fmt.Sprintf("listener of %s endpoints", k.scope), ServicePort: k.name, Have: "at " + l.Addr().String(),
			})
		}
	}
	sortDifferences(all)
	return all
}

// differences are sorted by object; owners may be nil.
func differences(want *state, owners map[chainID]dataplane.ServicePortName, have *state) []dataplane.Difference {
	var all []dataplane.Difference
	for id, rules := range want.chains {
		was, there := have.chains[id]
		if !there {
			all = append(all, dataplane.Difference{Object: id.String(), ServicePort: owners[id], Want: oneLine(rules)})
		} else if was != rules {
			all = append(all, ruleDifferences(id, owners[id], rules, was)...)
		}
	}
	for id, rules := range have.chains {
		if _, wanted := want.chains[id]; !wanted {
			all = append(all, dataplane.Difference{Object: id.String(), Have: oneLine(rules)})
		}
	}
	for id, rules := range have.hooks {
		if jumps := jumpsOf(id); !netfilter.InFront(rules, jumps, owns(id.table)) {
			ours := slices.DeleteFunc(slices.Clone(rules), func(r netfilter.Rule) bool { return !owns(id.table)(r) })
			all = append(all, dataplane.Difference{
				Object: id.String() + ", our jumps in front", Want: oneLine(text(jumps)), Have: oneLine(text(ours)),
			})
		}
	}
	all = append(all, setDifferences(want.sets, have.sets)...)
	sortDifferences(all)
	return all
}

func sortDifferences(all []dataplane.Difference) {
	slices.SortFunc(all, func(a, b dataplane.Difference) int { return strings.Compare(a.String(), b.String()) })
}

// oneLine puts a chain into a line; one without rules is told as such.
func oneLine(rules string) string {
	if rules == "" {
		return "no rule"
	}
	return strings.ReplaceAll(strings.TrimSuffix(rules, "\n"), "\n", "; ")
}

// ruleDifferences names each rule that is missing or superfluous in a chain, or
// says that they are in the wrong order.
func ruleDifferences(id chainID, owner dataplane.ServicePortName, want, have string) []dataplane.Difference {
	balance := make(map[string]int)
	for r := range strings.Lines(want) {
		balance[r]++
	}
	for r := range strings.Lines(have) {
		balance[r]--
	}
	var all []dataplane.Difference
	for r, n := range balance {
		switch d := (dataplane.Difference{Object: id.String(), ServicePort: owner}); {
		case n > 0:
			d.Want = oneLine(r)
			all = append(all, d)
		case n < 0:
			d.Have = oneLine(r)
			all = append(all, d)
		}
	}
	if all == nil {
		all = append(all, dataplane.Difference{
			Object: id.String() + ", order of rules", ServicePort: owner, Want: oneLine(want), Have: oneLine(have),
		})
	}
	return all
}

func setDifferences(want, have []netfilter.Set) []dataplane.Difference {
	plan := netfilter.PlanSets(want, have)
	var all []dataplane.Difference
	add := func(set, want, have string) {
		all = append(all, dataplane.Difference{Object: "ipset " + set, Want: want, Have: have})
	}
	for _, s := range plan.Create {
		add(s.Name, fmt.Sprintf("%d entries", len(s.Entries)), "")
	}
	for _, s := range plan.Replace {
		add(s.Name, "a set of type "+string(s.Type)+" as we make it", "another one")
	}
	for _, c := range plan.Add {
		add(c.Set, entryText(c.Entry), "")
	}
	for _, c := range plan.Remove {
		add(c.Set, "", entryText(c.Entry))
	}
	for _, name := range plan.Destroy {
		add(name, "", "a set")
	}
	return all
}

// entryText is an entry as ipset prints it.
func entryText(e netfilter.SetEntry) string {
	switch {
	case !e.Net.IsValid():
		return fmt.Sprint(e.Port)
	case e.Protocol == 0:
		return e.Net.Addr().String()
	}
	return fmt.Sprintf("%s,%s:%d", e.Net.Addr(), strings.ToLower(e.Protocol.String()), e.Port)
}
