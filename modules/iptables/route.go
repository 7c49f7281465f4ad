package iptables

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// routes are the three routes of a frontend as this mode takes them: a choice
// that is left to the plane is taken, and where nobody is a pod their route
// is that of the others. Equal routes give equal rules.
type routes [3]dataplane.Route

// routes simplifies what a frontend says. "Either" becomes yes: the node's
// flows from a Service address must be masqueraded, and the others lose
// nothing.
func (l locality) routes(f *dataplane.Frontend) routes {
	rs := routes(f.Routes)
	for o := range rs {
		r := &rs[o]
		switch {
		case r.Action != dataplane.Forward:
			*r = dataplane.Route{Action: r.Action}
		case r.Masquerade == dataplane.MasqueradeEither:
			r.Masquerade = dataplane.MasqueradeYes
		case r.Masquerade == dataplane.MasqueradeRemote && l.provable(dataplane.Origin(o)):
			r.Masquerade = dataplane.MasqueradeNo
		}
	}
	if !l.HasPods {
		rs[dataplane.FromPod] = rs[dataplane.FromOutside]
	}
	return rs
}

// provable tells whether all sources of an origin are on this node for sure.
func (l locality) provable(o dataplane.Origin) bool {
	return o == dataplane.FromNode || o == dataplane.FromPod && !l.ByRange()
}

// pool is the pool that all origins are forwarded to, if it is one.
func (rs routes) pool() (*dataplane.Pool, bool) {
	p := rs[0].Pool
	for _, r := range rs {
		if r.Action != dataplane.Forward || r.Pool != p {
			return nil, false
		}
	}
	return p, true
}

// forwards tells whether some origin is forwarded.
func (rs routes) forwards() bool {
	return slices.ContainsFunc(rs[:], func(r dataplane.Route) bool { return r.Action == dataplane.Forward })
}

// masquerades are the wishes of the origins.
func (rs routes) masquerades() [3]dataplane.Masquerade {
	return [3]dataplane.Masquerade{rs[0].Masquerade, rs[1].Masquerade, rs[2].Masquerade}
}

// frontend adds the rule that leads to a frontend, and what it leads to.
func (w *writer) frontend(f *dataplane.Frontend) {
	rs := w.local.routes(f)
	if target, ok := w.target(f, rs); ok {
		w.dispatch(f, target)
	}
	w.refuse(f, rs)
	if f.Kind == dataplane.ClusterIP {
		w.enter(setClusterIP, netfilter.AddrEntry(f.Addr))
	}
}

// target tells where in the nat table the flows of a frontend go. A frontend
// with an address of its own has a rule even if it forwards nobody: otherwise
// it would fall through to the NodePorts of the same number.
func (w *writer) target(f *dataplane.Frontend, rs routes) (netfilter.Target, bool) {
	if !rs.forwards() {
		return netfilter.Accept(), f.Kind != dataplane.NodePort
	}
	target := w.routed(f, rs)
	if f.Sources != nil {
		target = w.firewall(f.Sources, target)
	}
	return target, true
}

// routed is the way to the endpoints behind the source ranges: the pool's
// chain where no origin needs another one.
func (w *writer) routed(f *dataplane.Frontend, rs routes) netfilter.Target {
	pool, one := rs.pool()
	if !one {
		return w.external(rs)
	}
	if rs.masquerades() == [3]dataplane.Masquerade{} {
		return w.toPool(pool)
	}
	if f.Kind == dataplane.ClusterIP {
		if rs.masquerades() == exceptPods && w.local.TellsPods() {
			w.enter(setMasquerade, portEntry(f.Key(w.sp.Name.Protocol)))
			return w.toPool(pool)
		}
		if mark, ok := w.local.mark(rs); ok {
			mark.Destination = netfilter.MatchAddr(f.Addr)
			mark.Protocol = netfilter.Is(w.sp.Name.Protocol)
			mark.DestPort = netfilter.Port(f.Port)
			w.marks[pool] = append(w.marks[pool], mark)
			return w.toPool(pool)
		}
	}
	return w.external(rs)
}

// exceptPods is how nearly all ClusterIPs are masqueraded: for the node (as this
// mode has it, see [locality.routes]) and for who comes from outside. One rule and
// a set do it for all of them. A rule for each would be a seventh of all rules, and
// what a change costs in iptables-legacy is by the number of rules.
var exceptPods = [3]dataplane.Masquerade{
	dataplane.FromPod: dataplane.MasqueradeNo, dataplane.FromNode: dataplane.MasqueradeYes, dataplane.FromOutside: dataplane.MasqueradeYes,
}

// mark is the one rule that marks just those who must be masqueraded, if one
// is enough. It saves ClusterIPs a chain of their own.
func (l locality) mark(rs routes) (netfilter.Rule, bool) {
	const no, yes = dataplane.MasqueradeNo, dataplane.MasqueradeYes
	var r netfilter.Rule
	switch rs.masquerades() { // pod, node, outside
	case [3]dataplane.Masquerade{yes, yes, yes}:
	case [3]dataplane.Masquerade{no, yes, no}:
		r = fromNode()
	default:
		return r, false
	}
	r.Target = netfilter.Jump(chainMarkMasq)
	return r, true
}

// externalChain is a chain that tells origins apart, for all frontends of a
// ServicePort with the same routes.
type externalChain struct {
	routes routes
	name   string
}

// external is the jump to the chain for these routes.
func (w *writer) external(rs routes) netfilter.Target {
	for _, c := range w.ext {
		if c.routes == rs {
			return netfilter.Jump(c.name)
		}
	}
	c := externalChain{rs, numbered(kindExternal, w.sp.Name, len(w.ext))}
	w.ext = append(w.ext, c)
	w.out.AddChain(netfilter.NAT, c.name, w.originRules(rs)...)
	return netfilter.Jump(c.name)
}

// originRules send each origin its way: the node first, because its address
// may look like a pod's, then pods, then all the others.
func (w *writer) originRules(rs routes) []netfilter.Rule {
	pod, node, outside := rs[dataplane.FromPod], rs[dataplane.FromNode], rs[dataplane.FromOutside]
	var rules []netfilter.Rule
	podsDiffer := w.local.HasPods && pod != outside
	if podsDiffer || node != outside {
		rules = append(rules, w.route(fromNode(), node, nil)...)
	}
	if podsDiffer {
		onNode := w.local.PodCIDRs
		if w.local.ByRange() {
			onNode = w.local.SourcesOnNode()
		}
		rules = append(rules, w.route(w.local.FromPods(), pod, onNode)...)
	}
	return append(rules, w.route(netfilter.Rule{}, outside, w.local.PodCIDRs)...)
}

// route takes the flows that match along a route. A refusal is an ACCEPT: it
// ends the translation, and the filter table says no.
func (w *writer) route(match netfilter.Rule, r dataplane.Route, onNode []netip.Prefix) []netfilter.Rule {
	if r.Action != dataplane.Forward {
		match.Target = netfilter.Accept()
		return []netfilter.Rule{match}
	}
	var rules []netfilter.Rule
	jump, mark := match, match
	jump.Target, mark.Target = w.toPool(r.Pool), netfilter.Jump(chainMarkMasq)
	switch r.Masquerade {
	case dataplane.MasqueradeYes:
		rules = append(rules, mark)
	case dataplane.MasqueradeRemote:
		for _, p := range onNode {
			local := jump
			local.Source = netfilter.MatchPrefix(p)
			rules = append(rules, local)
		}
		rules = append(rules, mark)
	}
	return append(rules, jump)
}
