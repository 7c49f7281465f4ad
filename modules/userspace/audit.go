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
func (p *reader) Audit(ctx context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	listening := p.open(want.Node())
	t := newTranslator(want.Node(), p.family)
	wish := program.Wish{
		SyncRequest: dataplane.SyncRequest{Want: want}, Frame: newFrame(want.Node(), p.family),
		Source: func(sp *dataplane.ServicePort) (program.Source, error) { return listening.source(t, sp), nil },
	}
	all, err := p.program.Audit(ctx, wish)
	if err != nil {
		return nil, err
	}
	return append(all, listening.differences(want, p.family)...), nil
}

// openListeners are what listens, by pool, and what listens besides.
type openListeners struct {
	of    map[poolKey]relay.Listening
	stray []relay.Listening
}

// open sorts what listens. Of two for one pool, the one where the node should
// listen counts; the other is one that nobody has come to close yet.
func (p *reader) open(n *dataplane.Node) openListeners {
	o := openListeners{of: make(map[poolKey]relay.Listening)}
	at, _ := listenAddr(n, p.family)
	for _, l := range p.table(relay.Nobody) {
		k := poolKey{l.Route.Name, l.Route.Scope}
		other, taken := o.of[k]
		switch {
		case taken && other.Addr.Addr() == at:
			o.stray = append(o.stray, l)
			continue
		case taken:
			o.stray = append(o.stray, other)
		}
		o.of[k] = l
	}
	return o
}

// source is a ServicePort with the listeners that there are.
func (o openListeners) source(t *translator, sp *dataplane.ServicePort) source {
	src := source{translator: t, sp: sp}
	for _, k := range poolsInUse(sp, t.family) {
		if l, ok := o.of[k]; ok {
			src.at[k.scope] = l.Addr
		}
	}
	return src
}

func (o openListeners) differences(want *dataplane.Snapshot, f dataplane.Family) []dataplane.Difference {
	var all []dataplane.Difference
	wanted := make(map[poolKey]bool)
	for sp := range want.ServicePorts() {
		for _, k := range poolsInUse(sp, f) {
			wanted[k] = true
			to := relay.RouteTo(sp, poolOf(sp, f, k.scope))
			d := dataplane.Difference{Object: k.object(), ServicePort: k.name, Want: "to " + to.String()}
			if l, ok := o.of[k]; ok && l.Route.Equal(to) {
				continue
			} else if ok {
				d.Have = "to " + l.Route.String()
			}
			all = append(all, d)
		}
	}
	superfluous := func(l *relay.Listening) {
		k := poolKey{l.Route.Name, l.Route.Scope}
		all = append(all, dataplane.Difference{Object: k.object(), ServicePort: k.name, Have: "at " + l.Addr.String()})
	}
	for k, l := range o.of {
		if !wanted[k] {
			superfluous(&l)
		}
	}
	for i := range o.stray {
		superfluous(&o.stray[i])
	}
	slices.SortFunc(all, func(a, b dataplane.Difference) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func (k poolKey) object() string { return fmt.Sprintf("listener of %s endpoints", k.scope) }
