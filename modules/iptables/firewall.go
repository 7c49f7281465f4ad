package iptables

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// firewallChain lets the allowed sources of some frontends pass to a target.
type firewallChain struct {
	sources *dataplane.SourceRanges
	target  netfilter.Target
	name    string
}

// firewall is the jump to a chain of the nat table that translates the flows
// of allowed sources only. The filter table drops the rest.
func (w *writer) firewall(s *dataplane.SourceRanges, target netfilter.Target) netfilter.Target {
	for _, c := range w.fw {
		if c.target == target && sameSources(c.sources, s) {
			return netfilter.Jump(c.name)
		}
	}
	c := firewallChain{s, target, numbered(kindFirewall, w.sp.Name, len(w.fw))}
	w.fw = append(w.fw, c)
	node := fromNode()
	node.Target = netfilter.Accept()
	if s.Node {
		node.Target = target
	}
	rules := []netfilter.Rule{node}
	for _, p := range netfilter.OfFamily(s.Prefixes, w.family) {
		rules = append(rules, netfilter.Rule{Source: netfilter.MatchPrefix(p), Target: target})
	}
	w.out.AddChain(netfilter.NAT, c.name, append(rules, netfilter.Rule{Target: netfilter.Accept()})...)
	return netfilter.Jump(c.name)
}

func sameSources(a, b *dataplane.SourceRanges) bool {
	return a == b || a != nil && b != nil && a.Node == b.Node && slices.Equal(a.Prefixes, b.Prefixes)
}

// refuse makes the filter table refuse what the nat table left as it was. Who
// refuses is an entry in a set, which comes before the nat table stops
// translating, and goes after it has begun. Only source ranges, and answers
// that depend on who asks, need rules: KUBE-FW, which no endpoint changes.
func (w *writer) refuse(f *dataplane.Frontend, rs routes) {
	answer, one := refusal(rs)
	k := f.Key(w.sp.Name.Protocol)
	if f.Sources != nil || !one {
		r := w.match(f)
		r.Target, r.Comment = w.denial(f.Sources, rs), w.comment(f)
		if f.Kind == dataplane.NodePort {
			w.out.AddRules(program.ChainID{Table: netfilter.Filter, Name: chainNodePorts}, k, r)
		} else {
			w.out.AddRules(below(filterFirewall(), f.Addr), k, r)
			w.enter(setFirewall, portEntry(k))
		}
	}
	if !one || answer == dataplane.NotOurs {
		return
	}
	drop, reject := setDrop, setReject
	e := portEntry(k)
	if f.Kind == dataplane.NodePort {
		drop, reject = setNodePortDrop.of(k.Protocol), setNodePortReject.of(k.Protocol)
		e = netfilter.SetEntry{Port: k.Port}
	}
	if answer == dataplane.Drop {
		w.enter(drop, e)
	} else {
		w.enter(reject, e)
	}
}

// refusal is the one answer that the origins get who are refused; NotOurs if
// none is. It is false if there are several.
func refusal(rs routes) (dataplane.Action, bool) {
	all := dataplane.NotOurs
	for _, r := range rs {
		switch {
		case r.Action == dataplane.Forward || r.Action == all:
		case all == dataplane.NotOurs:
			all = r.Action
		default:
			return all, false
		}
	}
	return all, true
}

// refuseBy makes a rule give an answer. A reset needs to know the protocol.
func (w *writer) refuseBy(r netfilter.Rule, a dataplane.Action) netfilter.Rule {
	switch {
	case a == dataplane.Drop:
		r.Target = netfilter.Drop()
	case a != dataplane.Reject:
		r.Target = netfilter.Return()
	case w.sp.Name.Protocol == dataplane.TCP:
		r.Protocol = netfilter.Is(dataplane.TCP)
		r.Target = netfilter.Reject(netfilter.TCPReset)
	default:
		r.Target = netfilter.Reject(netfilter.PortUnreachable(w.family))
	}
	return r
}

// denyChain is a chain of the filter table that drops the flows of sources that
// are not listed, and refuses each of the others its way.
type denyChain struct {
	sources *dataplane.SourceRanges
	actions [3]dataplane.Action
	name    string
}

// denial is the jump to such a chain.
func (w *writer) denial(s *dataplane.SourceRanges, rs routes) netfilter.Target {
	var actions [3]dataplane.Action // NotOurs leaves the answer to the sets
	if _, one := refusal(rs); !one {
		actions = [3]dataplane.Action{rs[0].Action, rs[1].Action, rs[2].Action}
	}
	for _, c := range w.deny {
		if c.actions == actions && sameSources(c.sources, s) {
			return netfilter.Jump(c.name)
		}
	}
	c := denyChain{s, actions, numbered(kindFirewall, w.sp.Name, len(w.deny))}
	w.deny = append(w.deny, c)
	w.out.AddChain(netfilter.Filter, c.name, w.denyRules(s, actions)...)
	return netfilter.Jump(c.name)
}

func (w *writer) denyRules(s *dataplane.SourceRanges, actions [3]dataplane.Action) []netfilter.Rule {
	node := actions[dataplane.FromNode]
	if s != nil && !s.Node {
		node = dataplane.Drop
	}
	rules := []netfilter.Rule{w.refuseBy(fromNode(), node)}
	if s == nil {
		return append(rules, w.denyOrigins(netip.Prefix{}, actions)...)
	}
	for _, p := range netfilter.OfFamily(s.Prefixes, w.family) {
		rules = append(rules, w.denyOrigins(p, actions)...)
	}
	return append(rules, netfilter.Rule{Target: netfilter.Drop()})
}

// denyOrigins refuses pods and others within a source range, or everywhere if
// the range is not valid.
func (w *writer) denyOrigins(from netip.Prefix, actions [3]dataplane.Action) []netfilter.Rule {
	var rules []netfilter.Rule
	var outside netfilter.Rule
	if from.IsValid() {
		outside.Source = netfilter.MatchPrefix(from)
	}
	if pod, ok := w.local.podWithin(from); ok && actions[dataplane.FromPod] != actions[dataplane.FromOutside] {
		rules = append(rules, w.refuseBy(pod, actions[dataplane.FromPod]))
	}
	return append(rules, w.refuseBy(outside, actions[dataplane.FromOutside]))
}

// podWithin matches the flows of pods within a source range.
func (l locality) podWithin(from netip.Prefix) (netfilter.Rule, bool) {
	if !l.HasPods {
		return netfilter.Rule{}, false
	}
	r := l.FromPods()
	if !from.IsValid() {
		return r, true
	}
	if !l.ByRange() {
		r.Source = netfilter.MatchPrefix(from)
		return r, true
	}
	part, ok := l.Within(from)
	r.Source = netfilter.MatchPrefix(part)
	return r, ok
}
