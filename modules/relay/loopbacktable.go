package relay

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// LoopbackTable is what listens for the NodePorts of one family on loopback, in
// this process or in one of which it was saved.
type LoopbackTable struct {
	Family dataplane.Family
	Table  []Listening
}

// LoopbackName is what the plane for NodePorts on loopback is called.
func LoopbackName(f dataplane.Family) string { return "loopback " + f.String() }

// Audit compares the listeners with what a snapshot wants.
func (t LoopbackTable) Audit(_ context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	routes := loopbackRoutes(want, t.Family)
	ports := slices.Collect(maps.Keys(routes))
	for _, l := range t.Table {
		ports = append(ports, l.Addr.Port())
	}
	slices.Sort(ports)
	var all []dataplane.Difference
	for _, port := range slices.Compact(ports) {
		at := netip.AddrPortFrom(t.Family.Loopback(), port)
		d := dataplane.Difference{Object: "listener tcp " + at.String()}
		want, wanted := routes[port]
		if wanted {
			d.ServicePort, d.Want = want.Name, "to "+want.String()
		}
		if l, ok := Find(t.Table, dataplane.TCP, at); ok {
			d.Have = "to " + l.Route.String()
			if !wanted {
				d.ServicePort = l.Route.Name
			}
			if wanted && l.Route.Equal(want) {
				continue
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// Explain tells where a flow to a loopback address goes. All others are not ours.
func (t LoopbackTable) Explain(_ context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	var e dataplane.Explanation
	if l, ok := Find(t.Table, f.Protocol, f.Dst); ok && f.InInterface == "" {
		e.Outcomes, e.Notes = l.Explain(f, nil)
		return e, nil
	}
	e.Outcomes = []dataplane.Outcome{{Action: dataplane.NotOurs, Probability: 1, Steps: []dataplane.Step{{
		Object: "relay at loopback", Detail: "no NodePort is served here",
	}}}}
	return e, nil
}

// loopbackRoutes are the listeners that a snapshot wants, by port.
func loopbackRoutes(s *dataplane.Snapshot, f dataplane.Family) map[uint16]Route {
	all := make(map[uint16]Route)
	if !s.Node().LoopbackNodePorts {
		return all
	}
	for sp := range s.ServicePorts() {
		maps.Insert(all, loopbackPorts(sp, f))
	}
	return all
}

// loopbackPorts yields the NodePorts of a ServicePort that forward the node's
// flows; sp may be nil.
func loopbackPorts(sp *dataplane.ServicePort, f dataplane.Family) func(func(uint16, Route) bool) {
	return func(yield func(uint16, Route) bool) {
		if sp == nil || sp.Name.Protocol != dataplane.TCP {
			return
		}
		for _, fe := range sp.Frontends {
			r := fe.Routes[dataplane.FromNode]
			if fe.Kind != dataplane.NodePort || fe.Family != f || r.Action != dataplane.Forward {
				continue
			}
			if fe.Sources.Allows(dataplane.FromNode, f.Loopback()) && !yield(fe.Port, RouteTo(sp, r.Pool)) {
				return
			}
		}
	}
}
