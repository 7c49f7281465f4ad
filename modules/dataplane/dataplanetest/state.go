package dataplanetest

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Detect is the way in which pods are told from others.
type Detect string

// The ways, as kube-proxy names them.
const (
	DetectNothing   Detect = "None"
	DetectCluster   Detect = "ClusterCIDR"
	DetectNode      Detect = "NodeCIDR"
	DetectInterface Detect = "InterfaceNamePrefix"
	DetectBridge    Detect = "BridgeInterface"
)

// bridge is what DetectBridge looks for.
const bridge = "cni0"

// NodePorts says at which addresses of the node NodePorts answer.
type NodePorts string

// The choices.
const (
	NodePortsAll     NodePorts = "all"
	NodePortsPrimary NodePorts = "primary"
	NodePortsNone    NodePorts = "none"
)

// State is all that a node is to forward.
type State struct {
	Detect Detect
	// Interface is how the names of pods' interfaces begin for DetectInterface;
	// "" is as the rig's do.
	Interface       string
	NodePorts       NodePorts
	MasqueradeAll   bool
	DropUnallocated bool
	// DropInternal drops, instead of rejecting, what internalTrafficPolicy Local
	// leaves without an endpoint on this node.
	DropInternal bool
	// HostPort is a TCP port of the node that a pod elsewhere has, by rules that
	// a network plugin puts in front of all others; 0 is none.
	HostPort uint16
	// Ignored are ClusterIPs that belong to another proxy.
	Ignored  []netip.Addr
	Services []Service
}

// RigOptions describe a rig that fits the state's Detect.
func (s State) RigOptions() rig.Options {
	if s.Detect == DetectBridge {
		return rig.Options{Bridge: bridge}
	}
	return rig.Options{}
}

// Snapshot is the state for a dataplane. It shares with an earlier snapshot
// what is still the same.
func (s State) Snapshot(earlier *dataplane.Snapshot) (*dataplane.Snapshot, error) {
	b := earlier.Edit()
	node := s.node()
	if !reflect.DeepEqual(node, earlier.Node()) {
		b.SetNode(node)
	}
	gone := make(map[dataplane.ServicePortName]bool)
	for sp := range earlier.ServicePorts() {
		gone[sp.Name] = true
	}
	for _, svc := range s.Services {
		sp := svc.servicePort(s, node)
		delete(gone, sp.Name)
		if old, ok := earlier.ServicePort(sp.Name); !ok || !reflect.DeepEqual(old, sp) {
			b.Put(sp)
		}
	}
	for name := range gone {
		b.Delete(name)
	}
	for ip := range earlier.Ignored() {
		b.Ignore(ip, slices.Contains(s.Ignored, ip))
	}
	for _, ip := range s.Ignored {
		b.Ignore(ip, true)
	}
	snapshot, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("snapshot of:\n%s: %w", s, err)
	}
	return snapshot, nil
}

// node describes the node of every rig. Loopback NodePorts are the relay's job,
// in every mode.
func (s State) node() *dataplane.Node {
	v4, v6, err := rig.Addrs("node")
	if err != nil {
		panic(err) // every rig has a node
	}
	n := &dataplane.Node{
		Name:            "node",
		PrimaryIPs:      []netip.Addr{v4, v6},
		Addresses:       sortedAddrs(v4, v6, rig.Alias4, rig.Alias6, dataplane.IPv4.Loopback(), dataplane.IPv6.Loopback()),
		Detectors:       s.detectors(),
		PodCIDRs:        []netip.Prefix{rig.PodRange4, rig.PodRange6},
		ServiceCIDRs:    []netip.Prefix{rig.ServiceRange4, rig.ServiceRange6},
		DropUnallocated: s.DropUnallocated,
		Mark:            1 << 14,
		DropInvalid:     true,
	}
	switch s.NodePorts {
	case NodePortsAll:
		n.NodePortAddrs = sortedAddrs(v4, v6, rig.Alias4, rig.Alias6)
	case NodePortsPrimary:
		n.NodePortAddrs = sortedAddrs(v4, v6)
	}
	return n
}

func (s State) detectors() []dataplane.Detector {
	var all []dataplane.Detector
	for _, f := range dataplane.Families() {
		d := dataplane.Detector{Family: f}
		switch s.Detect {
		case DetectCluster:
			d.Prefix = ofFamily(f, rig.ClusterRange4, rig.ClusterRange6)
		case DetectNode:
			d.Prefix = ofFamily(f, rig.PodRange4, rig.PodRange6)
		case DetectInterface:
			d.Interface, d.IsPrefix = cmp.Or(s.Interface, "veth"), true
		case DetectBridge:
			d.Interface = bridge
		default:
			return nil
		}
		all = append(all, d)
	}
	return all
}

func ofFamily[T any](f dataplane.Family, v4, v6 T) T {
	if f == dataplane.IPv6 {
		return v6
	}
	return v4
}

func sortedAddrs(addrs ...netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}
