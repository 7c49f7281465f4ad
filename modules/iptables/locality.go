package iptables

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// locality is what tells the origins of a flow apart, for one family: the part
// of the node on which fragments depend.
type locality struct {
	detector dataplane.Detector
	hasPods  bool // there is a detector
	podCIDRs []netip.Prefix
}

func newLocality(n *dataplane.Node, f dataplane.Family) locality {
	var l locality
	l.detector, l.hasPods = n.Detector(f)
	l.podCIDRs = ofFamily(n.PodCIDRs, f)
	return l
}

func (l locality) equal(o locality) bool {
	return l.detector == o.detector && l.hasPods == o.hasPods && slices.Equal(l.podCIDRs, o.podCIDRs)
}

func ofFamily(ps []netip.Prefix, f dataplane.Family) []netip.Prefix {
	var of []netip.Prefix
	for _, p := range ps {
		if dataplane.FamilyOf(p.Addr()) == f {
			of = append(of, p.Masked())
		}
	}
	return of
}

// fromNode matches the flows of the node itself. Those that it sends have a
// local source in OUTPUT already.
func fromNode() netfilter.Rule { return netfilter.Rule{SourceType: netfilter.Local} }

// fromPod matches the flows of pods that are not the node's.
func (l locality) fromPod() netfilter.Rule { return netfilter.FromPods(l.detector) }

// notFromPod matches all other flows, those of the node included: what the
// node sends has no incoming interface.
func (l locality) notFromPod() netfilter.Rule {
	r := l.fromPod()
	if l.detector.Prefix.IsValid() {
		r.Source.Not = r.Source.Addr.IsValid()
	} else {
		r.In.Not = true
	}
	return r
}

// everyone tells whether the detector takes every source for a pod, which no
// negated match can say.
func (l locality) everyone() bool {
	return l.hasPods && l.detector.Prefix.IsValid() && l.detector.Prefix.Bits() == 0
}

// within returns the part of a prefix from which pods come, by source.
func (l locality) within(p netip.Prefix) (netip.Prefix, bool) {
	d := l.detector.Prefix
	switch {
	case !d.IsValid() || !d.Overlaps(p):
		return netip.Prefix{}, false
	case d.Bits() > p.Bits():
		return d.Masked(), true
	}
	return p, true
}
