package dataplane

import (
	"fmt"
	"net/netip"
)

// Flow is the first packet of a connection, or of an exchange of datagrams, as
// it reaches or leaves this node. ICMP flows have port 0 on both sides.
type Flow struct {
	Src, Dst netip.AddrPort
	Protocol Protocol
	// InInterface is the device through which it came; empty for a flow that
	// the node itself sends.
	InInterface string
}

// String returns protocol, addresses and interface in a line.
func (f Flow) String() string {
	from := "the node"
	if f.InInterface != "" {
		from = f.InInterface
	}
	return fmt.Sprintf("%s %s -> %s from %s", f.Protocol, f.Src, f.Dst, from)
}

// Verdict is what must happen to a flow.
type Verdict struct {
	Action Action
	Origin Origin
	// Reason says in a few words which rule of meaning decided.
	Reason string
	// ServicePort and Frontend are what the flow meant, if it meant a Service
	// port.
	ServicePort *ServicePort
	Frontend    *Frontend
	// Pool holds the endpoints of a Forward; any of them is right.
	Pool *Pool

	masquerade Masquerade
	source     netip.Addr
	node       *Node
}

// MasqueradeTo tells whether the flow's source must be replaced on its way to
// an endpoint: MasqueradeNo, MasqueradeYes or MasqueradeEither. An endpoint on
// this node that reaches itself is always masqueraded (kubernetes#20475); for
// one on another node both are right, for that node sees to it. So they are
// for an endpoint at an address of this node, a host network pod: its replies
// pass here whatever source it sees, and the kernel never masquerades what it
// delivers to itself.
func (v Verdict) MasqueradeTo(e Endpoint) Masquerade {
	switch {
	case v.masquerade != MasqueradeNo && v.node.Holds(e.Addr.Addr()):
		return MasqueradeEither
	case v.masquerade == MasqueradeNo && v.source == e.Addr.Addr() && !e.Local:
		return MasqueradeEither
	case v.masquerade == MasqueradeNo && v.source == e.Addr.Addr():
		return MasqueradeYes
	}
	return v.masquerade
}

// Endpoint returns the endpoint of the verdict's pool with that address.
func (v Verdict) Endpoint(a netip.AddrPort) (Endpoint, bool) {
	if v.Pool == nil {
		return Endpoint{}, false
	}
	return v.Pool.Find(a)
}

// String returns the verdict in a line.
func (v Verdict) String() string {
	s := v.Action.String()
	if v.ServicePort != nil {
		s += " " + v.ServicePort.Name.String() + " " + v.Frontend.Kind.String()
	}
	return s + " (from " + v.Origin.String() + ": " + v.Reason + ")"
}

// Decide says what must happen to a new flow without memory of earlier ones:
// affinity and flows that exist already narrow the choice among the endpoints
// but never leave the pool.
//
// It is the oracle of every test and the specification in code: the frontend
// is looked up, then source ranges speak, then the frontend's route for the
// flow's origin. Flows to a ClusterIP that match no port are rejected, and
// those to an address of the ServiceCIDRs that no Service has are dropped.
func (s *Snapshot) Decide(f Flow) Verdict {
	v := Verdict{Origin: s.node.Origin(f), source: f.Src.Addr(), node: s.node}
	m, ok := s.lookup(f)
	if !ok {
		v.Action, v.Reason = s.decideUnclaimed(f)
		return v
	}
	v.ServicePort, v.Frontend = m.ServicePort, m.Frontend
	if !m.Frontend.Sources.Allows(v.Origin, f.Src.Addr()) {
		v.Action, v.Reason = Drop, "the source is in none of the source ranges"
		return v
	}
	r := m.Frontend.Routes[v.Origin]
	v.Action, v.Pool, v.masquerade = r.Action, r.Pool, s.resolve(r.Masquerade, f)
	switch r.Action {
	case Forward:
		v.Reason = r.Pool.Scope.String() + " endpoints"
	case Drop:
		v.Reason = "no endpoint on this node, others exist"
	default:
		v.Reason = "no usable endpoint"
	}
	return v
}

// resolve applies a route's wish to a flow. The node's own flows from a
// Service address (one that the proxy bound to a device) must be masqueraded,
// or the endpoint would answer to itself.
func (s *Snapshot) resolve(m Masquerade, f Flow) Masquerade {
	switch m {
	case MasqueradeRemote:
		if s.node.SourceOnNode(f) {
			return MasqueradeNo
		}
		return MasqueradeYes
	case MasqueradeEither:
		if s.IsServiceIP(f.Src.Addr()) {
			return MasqueradeYes
		}
	}
	return m
}

// lookup finds the frontend that a flow means: its exact address first, then
// the NodePorts.
func (s *Snapshot) lookup(f Flow) (Match, bool) {
	if !f.Protocol.HasPorts() {
		return Match{}, false
	}
	a, port := f.Dst.Addr(), f.Dst.Port()
	if m, ok := s.Lookup(FrontendKey{a, port, f.Protocol}); ok {
		return m, true
	}
	loopback := a.IsLoopback() && s.node.LoopbackNodePorts && f.Protocol == TCP && f.InInterface == ""
	if !loopback && !s.node.TakesNodePorts(a) {
		return Match{}, false
	}
	return s.Lookup(FrontendKey{FamilyOf(a).Unspecified(), port, f.Protocol})
}

// decideUnclaimed decides flows that mean no frontend. An address that the
// node holds on a device of somebody else is never restricted, even if it is
// a ClusterIP: a node-local DNS cache lives there.
func (s *Snapshot) decideUnclaimed(f Flow) (Action, string) {
	a := f.Dst.Addr()
	switch {
	case s.node.Holds(a):
		return NotOurs, "an address of this node"
	case s.IsClusterIP(a):
		return Reject, "the ClusterIP has no such port"
	case s.IsIgnored(a):
		return NotOurs, "the ClusterIP belongs to a Service of another proxy"
	case s.node.DropUnallocated && containsAddr(s.node.ServiceCIDRs, a):
		return Drop, "the ServiceCIDR's address belongs to no Service"
	}
	return NotOurs, "no Service has this address and port"
}
