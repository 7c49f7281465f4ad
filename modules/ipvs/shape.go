package ipvs

import (
	"fmt"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// locality is what tells the origins of a flow apart, for one family: the part
// of the node on which fragments depend.
type locality struct{ netfilter.Locality }

// A shape is how the routes of a frontend treat the three origins. A fixed
// number of rules tells a fixed number of shapes; they are those that traffic
// policies have. Any other one is an error, and nobody is let through.
type shape struct {
	// refuse: nobody is forwarded; the answer is Reject or Drop.
	refuse dataplane.Action
	// inside is where pods and the node go, and those from outside, too, unless
	// split. The node is always masqueraded.
	inside *dataplane.Pool
	// everyone is masqueraded, not only the node and those from outside if
	// they can be told from pods. Never with split.
	everyone bool
	// split: those from outside go to outside and keep their source, or are
	// dropped if it is nil. Pods are masqueraded if they are not on this node.
	split   bool
	outside *dataplane.Pool
}

// shapeOf tells the shape of a frontend's routes.
func (l locality) shapeOf(f *dataplane.Frontend) (shape, error) {
	pod, node, outside := f.Routes[dataplane.FromPod], f.Routes[dataplane.FromNode], f.Routes[dataplane.FromOutside]
	if !l.HasPods {
		pod = outside
	}
	if a := node.Action; a != dataplane.Forward {
		if pod.Action != a || outside.Action != a {
			return shape{}, unknownShape(f)
		}
		return shape{refuse: a}, nil
	}
	s := shape{inside: node.Pool}
	if node.Masquerade == dataplane.MasqueradeNo || l.HasPods && (pod.Action != dataplane.Forward || pod.Pool != node.Pool) {
		return shape{}, unknownShape(f)
	}
	if outside.Action == dataplane.Forward && outside.Pool == node.Pool && pod.Masquerade != dataplane.MasqueradeRemote {
		return s.whole(f, pod.Masquerade, outside.Masquerade, l.HasPods)
	}
	return s.divided(f, pod, outside, l)
}

// whole is a shape with one pool for all.
func (s shape) whole(f *dataplane.Frontend, pod, outside dataplane.Masquerade, hasPods bool) (shape, error) {
	const no, yes = dataplane.MasqueradeNo, dataplane.MasqueradeYes
	switch {
	case pod == yes && outside == yes:
		s.everyone = true
	case f.Kind == dataplane.ClusterIP && pod == no && (outside == yes) == hasPods && (outside == yes || outside == no):
	default:
		return shape{}, unknownShape(f)
	}
	return s, nil
}

// divided is a shape that treats flows from outside in another way.
func (s shape) divided(f *dataplane.Frontend, pod, outside dataplane.Route, l locality) (shape, error) {
	remote := pod.Masquerade == dataplane.MasqueradeRemote || pod.Masquerade == dataplane.MasqueradeNo && !l.ByRange()
	switch {
	case f.Kind == dataplane.ClusterIP, l.HasPods && !remote:
		return shape{}, unknownShape(f)
	case outside.Action == dataplane.Drop:
	case outside.Action == dataplane.Forward && outside.Masquerade == dataplane.MasqueradeNo:
		s.outside = outside.Pool
	default:
		return shape{}, unknownShape(f)
	}
	s.split = true
	return s, nil
}

func unknownShape(f *dataplane.Frontend) error {
	return fmt.Errorf("%s %s port %d treats pods, the node and others in a way that the ipvs mode has no rules for",
		f.Kind, f.Addr, f.Port)
}
