package dataplane

import (
	"net/netip"
	"slices"
	"strings"
)

// Node is what a plane must know of the node that it runs on. It is immutable
// once it is part of a Snapshot.
type Node struct {
	Name string
	// PrimaryIPs are the node's addresses in the Kubernetes API, at most one
	// for each family.
	PrimaryIPs []netip.Addr
	// Addresses are all addresses that the node holds, on any device but those
	// that Portway made; loopback ones included. Sorted.
	Addresses []netip.Addr
	// NodePortAddrs are those at which NodePorts answer; never loopback ones.
	// Sorted.
	NodePortAddrs []netip.Addr
	// LoopbackNodePorts: TCP NodePorts also answer on 127.0.0.1 and ::1.
	LoopbackNodePorts bool
	// Detectors tell pods from other sources, at most one for each family.
	Detectors []Detector
	// PodCIDRs are the ranges of the pods on this node, as far as known.
	PodCIDRs []netip.Prefix
	// ServiceCIDRs are the ranges from which ClusterIPs are taken, as far as
	// known.
	ServiceCIDRs []netip.Prefix
	// DropUnallocated: addresses in ServiceCIDRs that no Service has are
	// dropped.
	DropUnallocated bool
	// Mark is the one bit of the packet mark that planes may use; all others
	// are kept as they are.
	Mark uint32
	// DropInvalid: packets that conntrack calls invalid are not forwarded, so
	// that none reaches a client with its address untranslated
	// (kubernetes#74839). False when nf_conntrack_tcp_be_liberal does the same
	// job.
	DropInvalid bool
}

// Detector recognises the flows of pods of one family: by source (Prefix
// valid) or else by incoming interface, the whole name or, with IsPrefix, its
// beginning.
type Detector struct {
	Family    Family
	Prefix    netip.Prefix
	Interface string
	IsPrefix  bool
}

// Matches tells whether the flow comes from a pod.
func (d Detector) Matches(f Flow) bool {
	switch {
	case FamilyOf(f.Src.Addr()) != d.Family:
		return false
	case d.Prefix.IsValid():
		return d.Prefix.Contains(f.Src.Addr())
	case d.IsPrefix:
		return f.InInterface != "" && strings.HasPrefix(f.InInterface, d.Interface)
	}
	return f.InInterface != "" && f.InInterface == d.Interface
}

// Detector returns the family's detector.
func (n *Node) Detector(f Family) (Detector, bool) {
	for _, d := range n.Detectors {
		if d.Family == f {
			return d, true
		}
	}
	return Detector{}, false
}

// Origin classifies a flow.
func (n *Node) Origin(f Flow) Origin {
	if f.InInterface == "" || n.Holds(f.Src.Addr()) {
		return FromNode
	}
	if d, ok := n.Detector(FamilyOf(f.Src.Addr())); ok && d.Matches(f) {
		return FromPod
	}
	return FromOutside
}

// Holds tells whether an address is one of the node's own.
func (n *Node) Holds(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	_, ok := slices.BinarySearchFunc(n.Addresses, a, netip.Addr.Compare)
	return ok
}

// TakesNodePorts tells whether NodePorts answer at an address.
func (n *Node) TakesNodePorts(a netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(n.NodePortAddrs, a, netip.Addr.Compare)
	return ok
}

// SourceOnNode tells whether the source of a flow is provably on this node:
// it came from the node itself, from an interface that only local pods use, or
// from the node's own pod range.
func (n *Node) SourceOnNode(f Flow) bool {
	if n.Origin(f) == FromNode {
		return true
	}
	d, ok := n.Detector(FamilyOf(f.Src.Addr()))
	if ok && !d.Prefix.IsValid() && d.Matches(f) {
		return true
	}
	return containsAddr(n.PodCIDRs, f.Src.Addr())
}

// PrimaryIP returns the node's address of that family, or the zero Addr.
func (n *Node) PrimaryIP(f Family) netip.Addr {
	for _, a := range n.PrimaryIPs {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

func containsAddr(ps []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
}
