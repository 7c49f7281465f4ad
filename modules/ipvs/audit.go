package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// Audit reads the kernel and says how it differs from what the snapshot wants.
// What drains is as it should be.
func (p *Plane) Audit(ctx context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	m, failed := fullModel(want, p.translator(), p.randomFully)
	var refused []dataplane.Difference
	for _, f := range failed {
		refused = append(refused, dataplane.Difference{Object: "service port", ServicePort: f.Name, Want: f.Err.Error()})
	}
	r, err := p.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit ipvs mode, %s: %w", p.family, err)
	}
	r.keepOurs(p.options, m)
	return append(refused, p.differences(m, r)...), nil
}

// differences are sorted by object.
func (p *Plane) differences(m *model, r *reading) []dataplane.Difference {
	d := differ{model: m}
	d.rules(r)
	d.sets(netfilter.PlanSets(m.wantSets(), r.sets))
	if r.noDevice {
		d.add("device "+kernel.DeviceName, dataplane.ServicePortName{}, "up, with its own address", "")
	}
	d.locals(r)
	d.servers(r)
	changes, _ := kernel.Unset(p.sysctls, p.settings) // what cannot be read was a warning
	for _, c := range changes {
		d.add("sysctl "+c.Name, dataplane.ServicePortName{}, c.Value, c.Old)
	}
	slices.SortFunc(d.found, func(a, b dataplane.Difference) int {
		return strings.Compare(a.Object+a.Want+a.Have, b.Object+b.Want+b.Have)
	})
	return d.found
}

// differ collects differences.
type differ struct {
	model  *model
	owners map[netfilter.SetChange]dataplane.ServicePortName
	found  []dataplane.Difference
}

func (d *differ) add(object string, owner dataplane.ServicePortName, want, have string) {
	d.found = append(d.found, dataplane.Difference{Object: object, ServicePort: owner, Want: want, Have: have})
}

func (d *differ) rules(r *reading) {
	none := dataplane.ServicePortName{}
	want := d.model.frame.chains()
	for id, rules := range want {
		have, there := r.chains[id]
		switch {
		case !there:
			d.add(id.String(), none, text(rules), "")
		case !slices.Equal(have, rules):
			d.add(id.String(), none, text(without(rules, have)), "with "+text(without(have, rules)))
		}
	}
	for id, rules := range r.chains {
		if _, wanted := want[id]; !wanted {
			d.add(id.String(), none, "", "a chain: "+text(rules))
		}
	}
	for _, h := range hooks() {
		if have := r.hooks[h.id]; !netfilter.InFront(have, h.jumps, ownsRule) {
			ours := slices.DeleteFunc(slices.Clone(have), func(r netfilter.Rule) bool { return !ownsRule(r) })
			d.add(h.id.String()+", our jumps in front", none, text(h.jumps), text(ours))
		}
	}
}

// without are the rules that another chain has not; all of them if the two
// differ in their order only.
func without(rules, other []netfilter.Rule) []netfilter.Rule {
	only := slices.DeleteFunc(slices.Clone(rules), func(r netfilter.Rule) bool { return slices.Contains(other, r) })
	if len(only) == 0 && len(rules) == len(other) {
		return rules
	}
	return only
}

func text(rules []netfilter.Rule) string {
	all := make([]string, len(rules))
	for i := range rules {
		all[i] = rules[i].String()
	}
	return strings.Join(all, "; ")
}

func (d *differ) sets(p netfilter.SetPlan) {
	none := dataplane.ServicePortName{}
	for _, s := range p.Create {
		d.add("ipset "+s.Name, none, fmt.Sprintf("%d members", len(s.Entries)), "")
	}
	for _, s := range p.Replace {
		d.add("ipset "+s.Name, none, "a set of type "+string(s.Type)+" as we make it", "another one")
	}
	for _, c := range p.Add {
		d.add("ipset "+c.Set, d.ownerOf(c), c.EntryText(), "")
	}
	for _, c := range p.Remove {
		d.add("ipset "+c.Set, none, "", c.EntryText())
	}
}

// ownerOf tells whom an entry serves; one of them where they are several.
func (d *differ) ownerOf(c netfilter.SetChange) dataplane.ServicePortName {
	if d.owners == nil {
		d.owners = make(map[netfilter.SetChange]dataplane.ServicePortName)
		for name, sp := range d.model.ports {
			f, err := d.model.fragment(sp)
			if err != nil {
				continue // it was put, so it has one
			}
			for _, e := range f.entries {
				if other, taken := d.owners[e]; !taken || name.Compare(other) < 0 {
					d.owners[e] = name
				}
			}
		}
	}
	return d.owners[c]
}

func (d *differ) locals(r *reading) {
	all := maps.Clone(d.model.locals)
	for a := range r.locals {
		all[a]++
	}
	put, _, remove := planLocals(d.model, slices.SortedFunc(maps.Keys(all), netip.Addr.Compare), r.locals)
	for _, op := range put {
		have := ""
		if h, there := r.locals[op.Local.Prefix.Addr()]; there {
			have = h.String()
		}
		d.add("device "+kernel.DeviceName+", "+op.Local.Prefix.Addr().String(), dataplane.ServicePortName{}, op.Local.String(), have)
	}
	for _, op := range remove {
		d.add("device "+kernel.DeviceName+", "+op.Local.Prefix.Addr().String(), dataplane.ServicePortName{}, "", op.Local.String())
	}
}

func (d *differ) servers(r *reading) {
	keys := slices.Collect(maps.Keys(d.model.servers))
	for k := range r.servers {
		if _, wanted := d.model.servers[k]; !wanted {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, kernel.Key.Compare)
	p := planServers(d.model, keys, r.servers)
	for _, op := range append(p.grow, p.shrink...) {
		d.op(op, r.servers[op.Key])
	}
}

// op is a change that would be made, as a difference.
func (d *differ) op(op kernel.Op, h *have) {
	object, want, was := "virtual server "+op.Key.String(), "", ""
	if op.Verb.OfReal() {
		object = "real server " + op.Real.String() + " of " + object
	}
	if h != nil {
		was = h.how.String()
		if i, ok := h.find(op.Real); ok {
			was = fmt.Sprintf("-m -w %d", h.reals[i].weight)
			if h.reals[i].odd {
				was += " with other options"
			}
		}
	}
	switch op.Verb {
	case kernel.AddServer:
		want, was = op.Server.String(), ""
	case kernel.SetServer:
		want = op.Server.String()
	case kernel.AddReal:
		want, was = fmt.Sprintf("-m -w %d", op.Weight), ""
	case kernel.SetReal:
		want = fmt.Sprintf("-m -w %d", op.Weight)
	}
	d.add(object, d.model.owner(op.Key), want, was)
}
