package netfilter

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// Locality is what tells the origins of a flow apart, for one family: the part
// of the node on which the rules of a ServicePort depend.
type Locality struct {
	Detector dataplane.Detector
	HasPods  bool // there is a detector
	PodCIDRs []netip.Prefix
}

// LocalityOf returns a node's.
func LocalityOf(n *dataplane.Node, f dataplane.Family) Locality {
	var l Locality
	l.Detector, l.HasPods = n.Detector(f)
	l.PodCIDRs = OfFamily(n.PodCIDRs, f)
	return l
}

// OfFamily returns the prefixes of a family, without host bits.
func OfFamily(ps []netip.Prefix, f dataplane.Family) []netip.Prefix {
	var of []netip.Prefix
	for _, p := range ps {
		if dataplane.FamilyOf(p.Addr()) == f {
			of = append(of, p.Masked())
		}
	}
	return of
}

// Equal tells whether two of them give the same rules.
func (l Locality) Equal(o Locality) bool {
	return l.Detector == o.Detector && l.HasPods == o.HasPods && slices.Equal(l.PodCIDRs, o.PodCIDRs)
}

// FromPods matches the flows of pods that are not the node's.
func (l Locality) FromPods() Rule { return FromPods(l.Detector) }

// NotFromPods matches all other flows, those of the node included: what the node
// sends has no incoming interface. For when it TellsPods.
func (l Locality) NotFromPods() Rule {
	r := l.FromPods()
	if l.ByRange() {
		r.Source.Not = r.Source.Addr.IsValid()
	} else {
		r.In.Not = true
	}
	return r
}

// ByRange tells whether pods are told by their address, which may be that of a
// pod on another node; else an interface of this node tells them.
func (l Locality) ByRange() bool { return l.Detector.Prefix.IsValid() }

// TellsPods tells whether a match can say who is no pod. A detector that takes
// every source for one cannot be negated.
func (l Locality) TellsPods() bool {
	everyone := l.ByRange() && l.Detector.Prefix.Bits() == 0
	return l.HasPods && !everyone
}

// Within returns the part of a prefix from which pods come, where a range tells
// who is a pod.
func (l Locality) Within(p netip.Prefix) (part netip.Prefix, ok bool) {
	d := l.Detector.Prefix
	switch {
	case !d.IsValid() || !d.Overlaps(p):
		return netip.Prefix{}, false
	case d.Bits() > p.Bits():
		return d.Masked(), true
	}
	return p, true
}

// SourcesOnNode are the ranges from which pods of this node come, where a range
// tells who is a pod.
func (l Locality) SourcesOnNode() []netip.Prefix {
	var all []netip.Prefix
	for _, p := range l.PodCIDRs {
		if part, ok := l.Within(p); ok {
			all = append(all, part)
		}
	}
	return all
}

// FromPods matches what a detector recognises.
func FromPods(d dataplane.Detector) Rule {
	if d.Prefix.IsValid() {
		return Rule{Source: MatchPrefix(d.Prefix)}
	}
	name := d.Interface
	if d.IsPrefix {
		name += "+"
	}
	return Rule{In: IfaceMatch{Name: name}}
}
