package userspace

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter/program"
	"github.com/portway/portway/modules/relay"
)

// Audit reads the kernel and says how it, and the listeners, differ from what
// the snapshot wants.
func (p *Plane) Audit(ctx context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	wish := p.wish(dataplane.SyncRequest{Want: want})
	t := newTranslator(want.Node(), p.family)
	wish.Source = func(sp *dataplane.ServicePort) (program.Source, error) { return p.listening(t, sp), nil }
	all, err := p.program.Audit(ctx, wish)
	if err != nil {
		return nil, err
	}
	return append(all, p.listenerDifferences(want)...), nil
}

// listening is a ServicePort with the listeners that there are.
func (p *Plane) listening(t *translator, sp *dataplane.ServicePort) source {
	src := source{translator: t, sp: sp}
	for _, k := range poolsInUse(sp, p.family) {
		if l, ok := p.listeners.open[k]; ok {
			src.at[k.scope] = l.Addr()
		}
	}
	return src
}

func (p *Plane) listenerDifferences(want *dataplane.Snapshot) []dataplane.Difference {
	var all []dataplane.Difference
	wanted := make(map[poolKey]bool)
	for sp := range want.ServicePorts() {
		for _, k := range poolsInUse(sp, p.family) {
			wanted[k] = true
			if d, differs := p.listenerDifference(k, relay.RouteTo(sp, poolOf(sp, p.family, k.scope))); differs {
				all = append(all, d)
			}
		}
	}
	for k, l := range p.listeners.open {
		if !wanted[k] {
			all = append(all, dataplane.Difference{Object: k.object(), ServicePort: k.name, Have: "at " + l.Addr().String()})
		}
	}
	slices.SortFunc(all, func(a, b dataplane.Difference) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func (p *Plane) listenerDifference(k poolKey, want relay.Route) (dataplane.Difference, bool) {
	d := dataplane.Difference{Object: k.object(), ServicePort: k.name, Want: "to " + want.String()}
	if l, ok := p.listeners.open[k]; ok {
		d.Have = "to " + l.Route().String()
		return d, !l.Route().Equal(want)
	}
	return d, true
}

func (k poolKey) object() string { return fmt.Sprintf("listener of %s endpoints", k.scope) }
