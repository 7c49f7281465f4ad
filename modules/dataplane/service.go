package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// ServiceName names a Service.
type ServiceName struct{ Namespace, Name string }

// String returns namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

func (n ServiceName) hash() uint32 { return hashStrings(n.Namespace, n.Name) }

// Compare orders by namespace, then name.
func (n ServiceName) Compare(o ServiceName) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// ServicePortName names one port of one Service. Protocol is part of it:
// kubernetes#81418, the same number under two protocols is two ports.
type ServicePortName struct {
	Namespace, Name string
	Port            string // the port's name, empty for a Service's only port
	Protocol        Protocol
}

// Service returns the name of the Service that the port belongs to.
func (n ServicePortName) Service() ServiceName { return ServiceName{n.Namespace, n.Name} }

// String returns namespace/name:port/PROTOCOL, without the colon when the port
// has no name. It is unambiguous: Kubernetes names hold none of the separators.
func (n ServicePortName) String() string {
	s := n.Namespace + "/" + n.Name
	if n.Port != "" {
		s += ":" + n.Port
	}
	return s + "/" + n.Protocol.String()
}

func (n ServicePortName) hash() uint32 {
	return hashStrings(n.Namespace, n.Name, n.Port) ^ uint32(n.Protocol)
}

// Compare orders by namespace, name, port name and protocol.
func (n ServicePortName) Compare(o ServicePortName) int {
	if c := n.Service().Compare(o.Service()); c != 0 {
		return c
	}
	if c := strings.Compare(n.Port, o.Port); c != 0 {
		return c
	}
	return cmp.Compare(n.Protocol, o.Protocol)
}

// Priority orders the programming of a cold start: what the rest of the node
// needs to come up goes first (kubernetes#133773).
type Priority uint8

// Higher is earlier.
const (
	PriorityNormal Priority = iota
	PriorityDNS
	PriorityAPIServer
)

// A ServicePort is one port of a Service with all decisions taken. It is
// immutable once it is part of a Snapshot; its pointer is its identity: as
// long as nothing changed, consecutive snapshots hold the same pointer.
type ServicePort struct {
	Name     ServicePortName
	Priority Priority

	// Affinity is the timeout of ClientIP session affinity: each new flow of a
	// client to the same set of endpoints restarts it. 0 is no affinity.
	Affinity time.Duration
	// Scheduler is the wish for an IPVS scheduler by its kernel name, empty for
	// the plane's default. Planes that have no schedulers ignore it.
	Scheduler string

	// Pools are the sets of endpoints that some route of a frontend refers to.
	Pools []*Pool
	// Frontends are the addresses at which the port answers.
	Frontends []*Frontend
	// Serving are all endpoints of both families on any node that still serve,
	// sorted: an existing flow to one of them is never stale, whatever policy,
	// hints and termination say about new ones.
	Serving []netip.AddrPort
}

// Scope tells which endpoints a Pool was chosen from.
type Scope uint8

const (
	// Cluster is all of them, narrowed by topology hints.
	Cluster Scope = iota
	// Local is those on this node.
	Local
)

// String returns "Cluster" or "Local", as traffic policies are spelt.
func (s Scope) String() string {
	if s == Local {
		return "Local"
	}
	return "Cluster"
}

// A Pool is a set of endpoints of one family among which a new flow chooses.
// A ServicePort has at most one Pool for each family and scope. It is not
// empty: where nothing is left the route says Reject or Drop.
type Pool struct {
	Family Family
	Scope  Scope
	// Endpoints are sorted by address and port, without duplicates.
	Endpoints []Endpoint
}

// An Endpoint is where a flow may end.
type Endpoint struct {
	Addr   netip.AddrPort
	Weight uint16 // relative share of new flows, at least 1
	Local  bool   // on this node
}

// Kind is the kind of address of a Frontend.
type Kind uint8

// The kinds, in the order in which they win a conflict over the same address,
// port and protocol.
const (
	ClusterIP Kind = iota
	LoadBalancerIP
	ExternalIP
	NodePort
)

var kindNames = [...]string{"ClusterIP", "LoadBalancerIP", "ExternalIP", "NodePort"}

// String returns the name of the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", k)
}

// A Frontend is an address and port at which a ServicePort answers.
type Frontend struct {
	Kind   Kind
	Family Family
	// Addr is the zero Addr for a NodePort, which answers at every address in
	// Node.NodePortAddrs of its family.
	Addr netip.Addr
	Port uint16
	// Sources limits who may connect; nil is everybody. A source that it does
	// not allow is dropped, whatever the routes say.
	Sources *SourceRanges
	// Routes holds what happens to a new flow, by its Origin.
	Routes [3]Route
}

// Key returns what the frontend claims for itself alone. NodePorts claim the
// unspecified address of their family.
func (f *Frontend) Key(p Protocol) FrontendKey {
	a := f.Addr
	if f.Kind == NodePort {
		a = f.Family.Unspecified()
	}
	return FrontendKey{Addr: a, Port: f.Port, Protocol: p}
}

// FrontendKey is an address, port and protocol. The unspecified address of a
// family stands for its NodePort addresses.
type FrontendKey struct {
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
}

// IsNodePort tells whether the key stands for all NodePort addresses.
func (k FrontendKey) IsNodePort() bool { return k.Addr.IsUnspecified() }

// String returns address:port/PROTOCOL, with "*" for the NodePort addresses.
func (k FrontendKey) String() string {
	if k.IsNodePort() {
		return fmt.Sprintf("%s *:%d/%s", FamilyOf(k.Addr), k.Port, k.Protocol)
	}
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + k.Protocol.String()
}

func (k FrontendKey) hash() uint32 {
	return hashAddr(k.Addr) ^ uint32(k.Port)*2654435761 ^ uint32(k.Protocol)
}

// Compare orders by address, port and protocol.
func (k FrontendKey) Compare(o FrontendKey) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	if c := cmp.Compare(k.Port, o.Port); c != 0 {
		return c
	}
	return cmp.Compare(k.Protocol, o.Protocol)
}

// SourceRanges are the sources that may use a frontend. No prefix at all
// means that nobody but perhaps the node may.
type SourceRanges struct {
	Prefixes []netip.Prefix // masked, sorted, of the frontend's family
	// Node allows the node's own flows: its primary address is in Prefixes.
	// The source address that the kernel picks plays no part.
	Node bool
}

// Allows tells whether a flow of that origin and source may pass. A nil
// receiver allows everybody.
func (r *SourceRanges) Allows(o Origin, src netip.Addr) bool {
	if r == nil {
		return true
	}
	if o == FromNode {
		return r.Node
	}
	for _, p := range r.Prefixes {
		if p.Contains(src) {
			return true
		}
	}
	return false
}

// Origin is where a flow comes from, as far as Services care.
type Origin uint8

const (
	// FromPod is a flow that the LocalDetector recognises.
	FromPod Origin = iota
	// FromNode is a flow whose source is an address of this node, host network
	// pods included.
	FromNode
	// FromOutside is all the rest.
	FromOutside
)

// Origins returns the three origins.
func Origins() []Origin { return []Origin{FromPod, FromNode, FromOutside} }

// String returns "pod", "node" or "outside".
func (o Origin) String() string {
	switch o {
	case FromPod:
		return "pod"
	case FromNode:
		return "node"
	}
	return "outside"
}

// Action is what happens to a new flow.
type Action uint8

const (
	// NotOurs: no Service is meant; the flow passes as if there were no proxy.
	NotOurs Action = iota
	// Forward sends the flow to an endpoint of a pool.
	Forward
	// Reject refuses at once, with a TCP reset or an ICMP port unreachable.
	Reject
	// Drop leaves the flow without an answer.
	Drop
)

var actionNames = [...]string{"not ours", "forward", "reject", "drop"}

// String returns the action in words.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", a)
}

// Masquerade tells whether a forwarded flow gets an address of this node as
// its source.
type Masquerade uint8

const (
	// MasqueradeNo keeps the source.
	MasqueradeNo Masquerade = iota
	// MasqueradeYes replaces it.
	MasqueradeYes
	// MasqueradeEither leaves the choice to the plane.
	MasqueradeEither
	// MasqueradeRemote keeps the source if it is provably on this node and
	// replaces it otherwise, because the replies would bypass this node. It
	// occurs in a Route, never in a Verdict.
	MasqueradeRemote
)

var masqueradeNames = [...]string{"no", "yes", "either", "unless the source is on this node"}

// String returns the value in words.
func (m Masquerade) String() string {
	if int(m) < len(masqueradeNames) {
		return masqueradeNames[m]
	}
	return fmt.Sprintf("Masquerade(%d)", m)
}

// Route is what happens to a new flow of one origin at one frontend.
type Route struct {
	Action     Action // Forward, Reject or Drop
	Pool       *Pool  // for Forward: one of the ServicePort's Pools
	Masquerade Masquerade
}
