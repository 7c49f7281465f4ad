package userspace

import (
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// frontendWriter translates one frontend.
type frontendWriter struct {
	source
	out   *program.Fragment
	f     *dataplane.Frontend
	key   dataplane.FrontendKey
	match netfilter.Rule
	// come and host are the buckets, of both tables, for flows that come to this
	// node and for its own. So no rule need ask whether a source is the node.
	come, host string
}

func (w *frontendWriter) enter(s set, e netfilter.SetEntry) { w.out.AddEntry(s.entry(w.family, e)) }

// add puts a rule of the frontend into a bucket.
func (w *frontendWriter) add(t netfilter.Table, bucket string, r netfilter.Rule) {
	w.out.AddRules(program.ChainID{Table: t, Name: bucket}, w.key, r)
}

// rule is one of the frontend's rules, for the flows that another one matches.
func (w *frontendWriter) rule(with netfilter.Rule, t netfilter.Target) netfilter.Rule {
	r := w.match
	r.Source, r.In, r.Target = with.Source, with.In, t
	return r
}

// route is what happens to an origin; where nobody is a pod, pods are others.
func (w *frontendWriter) route(o dataplane.Origin) dataplane.Route {
	if o == dataplane.FromPod && !w.hasPods {
		o = dataplane.FromOutside
	}
	return w.f.Routes[o]
}

// target is where a route goes in nat: to a pool, or on, untranslated, to the
// filter table, which refuses.
func (w *frontendWriter) target(r dataplane.Route) netfilter.Target {
	if r.Action == dataplane.Forward && w.at[r.Pool.Scope].IsValid() {
		return netfilter.Jump(poolKey{w.sp.Name, r.Pool.Scope}.chain())
	}
	return netfilter.Accept()
}

// rejects tells whether nat leaves flows of some origin as they are.
func (w *frontendWriter) rejects() bool {
	return slices.ContainsFunc(w.f.Routes[:], func(r dataplane.Route) bool { return w.target(r) == netfilter.Accept() })
}

// redirect adds the rules of nat.
func (w *frontendWriter) redirect() {
	pod, outside := w.target(w.route(dataplane.FromPod)), w.target(w.route(dataplane.FromOutside))
	host := w.target(w.route(dataplane.FromNode))
	if s := w.f.Sources; s != nil {
		w.add(netfilter.NAT, w.come, w.rule(netfilter.Rule{}, netfilter.Jump(w.sources(netfilter.NAT, netfilter.Accept()))))
		if !s.Node {
			host = netfilter.Accept()
		}
	}
	if pod != outside {
		w.add(netfilter.NAT, w.come, w.rule(netfilter.FromPods(w.detector), pod))
	}
	w.add(netfilter.NAT, w.come, w.rule(netfilter.Rule{}, outside))
	w.add(netfilter.NAT, w.host, w.rule(netfilter.Rule{}, host))
}

// sources is the chain that comes back for allowed sources, and has another end
// for the rest.
func (w *frontendWriter) sources(t netfilter.Table, end netfilter.Target) string {
	var rules []netfilter.Rule
	for _, p := range w.f.Sources.Prefixes {
		rules = append(rules, netfilter.Rule{Source: netfilter.MatchPrefix(p), Target: netfilter.Return()})
	}
	name := sourcesChain(w.sp.Name, w.key)
	w.out.AddChain(t, name, append(rules, netfilter.Rule{Target: end})...)
	return name
}

// refuse adds the rules of filter, where the sets that reject are not the
// answer.
func (w *frontendWriter) refuse() {
	pod, outside := w.answer(dataplane.FromPod), w.answer(dataplane.FromOutside)
	if w.f.Sources != nil {
		w.add(netfilter.Filter, w.come, w.rule(netfilter.Rule{}, netfilter.Jump(w.sources(netfilter.Filter, netfilter.Drop()))))
	}
	if pod != outside {
		w.add(netfilter.Filter, w.come, w.rule(netfilter.FromPods(w.detector), pod))
	}
	if outside == netfilter.Drop() {
		w.add(netfilter.Filter, w.come, w.rule(netfilter.Rule{}, outside))
	}
	if w.answer(dataplane.FromNode) == netfilter.Drop() || w.f.Sources != nil && !w.f.Sources.Node {
		w.add(netfilter.Filter, w.host, w.rule(netfilter.Rule{}, netfilter.Drop()))
	}
}

// answer is what untranslated flows of an origin get. One that should have been
// forwarded is rejected: its pool has no listener.
func (w *frontendWriter) answer(o dataplane.Origin) netfilter.Target {
	if w.route(o).Action == dataplane.Drop {
		return netfilter.Drop()
	}
	return netfilter.Jump(chainReject)
}
