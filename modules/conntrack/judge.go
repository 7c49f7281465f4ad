package conntrack

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// Verdict is what is to become of an entry.
type Verdict uint8

const (
	// Keep: the entry is right, or none of our business.
	Keep Verdict = iota
	// EndpointGone: it leads to what no longer is a serving endpoint of the
	// Service port.
	EndpointGone
	// NeverTranslated: it dates from before the frontend had endpoints and
	// keeps the flow from them.
	NeverTranslated
	// FrontendGone: it leads to an endpoint of a frontend that was removed.
	FrontendGone
)

var verdictNames = [...]string{"keep", "endpoint gone", "never translated", "frontend gone"}

// String returns the verdict in words.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", v)
}

// Stale tells whether the entry must be deleted.
func (v Verdict) Stale() bool { return v != Keep }

// Removed are frontends that were removed since the table was last cleaned. A
// key that the snapshot has again means nothing.
type Removed map[dataplane.FrontendKey]bool

// Judge decides about one entry.
//
//  1. Only UDP entries can be stale. TCP and SCTP end by themselves, and
//     cutting them would break what still works.
//  2. The original destination, address and port, must be a frontend of the
//     snapshot. A NodePort counts on this node's own NodePort addresses only:
//     through another node's it is that node's flow (felix#2588).
//  3. An entry that leads to a serving endpoint of that Service port, on any
//     node, is right. Traffic policy, hints and termination choose for new
//     flows; they do not cut a flow that was right (kubernetes#122740).
//  4. A translated entry that leads elsewhere is stale, also when no endpoint
//     is left (kubernetes#139628).
//  5. An entry that is not translated is stale once the frontend forwards
//     anything on this node (kubernetes#48370, #105657, #126934). That is, in
//     the default zone: in a zone of its own a virtual switch may have seen the
//     packet on its way to our rules, and its entry is right as it is.
//  6. Where the snapshot has no such frontend, translated entries of removed
//     frontends are stale (kubernetes PR 141371).
func Judge(s *dataplane.Snapshot, removed Removed, e Entry) Verdict {
	if e.Protocol != dataplane.UDP {
		return Keep
	}
	exact, nodePort, onNode := claims(s.Node(), e.Orig.Dst)
	m, live := s.Lookup(exact)
	if !live && onNode {
		m, live = s.Lookup(nodePort)
	}
	if live {
		return judgeLive(m, e)
	}
	if e.Translated() && (removed[exact] || onNode && removed[nodePort]) {
		return FrontendGone
	}
	return Keep
}

// claims returns the keys under which a destination can be a frontend; the
// second one only if it is an address of this node that takes NodePorts.
func claims(n *dataplane.Node, dst netip.AddrPort) (exact, nodePort dataplane.FrontendKey, onNode bool) {
	a := dst.Addr()
	exact = dataplane.FrontendKey{Addr: a, Port: dst.Port(), Protocol: dataplane.UDP}
	nodePort = exact
	nodePort.Addr = dataplane.FamilyOf(a).Unspecified()
	return exact, nodePort, n.TakesNodePorts(a)
}

func judgeLive(m dataplane.Match, e Entry) Verdict {
	switch {
	// First, because a frontend may be its own endpoint: an externalIP that is
	// a node's address, with a host network pod on the same port.
	case serves(m.ServicePort, e.Reply.Src):
		return Keep
	case e.Translated():
		return EndpointGone
	case e.Zone == 0 && forwards(m.Frontend):
		return NeverTranslated
	}
	return Keep
}

func serves(sp *dataplane.ServicePort, a netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(sp.Serving, a, netip.AddrPort.Compare)
	return ok
}

// forwards tells whether new flows of any origin find an endpoint. The origin
// of an old one is not always known: conntrack remembers no interface.
func forwards(f *dataplane.Frontend) bool {
	return slices.ContainsFunc(f.Routes[:], func(r dataplane.Route) bool {
		return r.Action == dataplane.Forward
	})
}
