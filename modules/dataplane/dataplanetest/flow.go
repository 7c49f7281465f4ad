package dataplanetest

import (
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Shot is a flow that a host of a rig can really send.
type Shot struct {
	From string
	Flow dataplane.Flow
	// SourcePort is the port that it is sent from; 0 is any.
	SourcePort uint16
}

func (s Shot) String() string {
	return fmt.Sprintf("%s %s -> %s (%s)", s.From, s.Flow.Protocol, s.Flow.Dst, s.Flow)
}

// sources are the hosts that send: a pod, a pod that is an endpoint, the node,
// an outside client, the pod of another node, another node.
var sources = []string{"c", "e1", "node", "up", "remote", "node2"}

// Shots lists what is worth sending at a snapshot: from every source to every
// frontend, to ports and addresses next to them, and past all of them.
func Shots(state State, want *dataplane.Snapshot) []Shot {
	var all []Shot
	for _, from := range sources {
		for _, to := range targets(want) {
			all = append(all, Shot{From: from, Flow: state.flow(from, to.dst, to.protocol)})
		}
	}
	return all
}

// flow is a flow from a host of the rig as the node sees it.
func (s State) flow(from string, dst netip.AddrPort, p dataplane.Protocol) dataplane.Flow {
	v4, v6, err := rig.Addrs(from)
	if err != nil {
		panic(err) // sources and ParseProbe name hosts of the rig
	}
	src := ofFamily(dataplane.FamilyOf(dst.Addr()), v4, v6)
	var port uint16
	if p.HasPorts() {
		port = 40000
	}
	f := dataplane.Flow{Src: netip.AddrPortFrom(src, port), Dst: dst, Protocol: p, InInterface: s.inInterface(from)}
	if from == "node" && s.node().Holds(dst.Addr()) {
		f.Src = netip.AddrPortFrom(dst.Addr(), port) // a host calls itself by the same name
	}
	return f
}

func (s State) inInterface(from string) string {
	switch {
	case from == "node":
		return ""
	case !isPod(from):
		return "eth0"
	case s.Detect == DetectBridge:
		return bridge
	}
	return "veth" + from
}

type target struct {
	dst      netip.AddrPort
	protocol dataplane.Protocol
}

func targets(want *dataplane.Snapshot) []target {
	seen := make(map[target]bool)
	var all []target
	add := func(a netip.Addr, port uint16, p dataplane.Protocol) {
		if t := (target{netip.AddrPortFrom(a, port), p}); !seen[t] {
			seen[t] = true
			all = append(all, t)
		}
	}
	for sp := range want.ServicePorts() {
		for _, f := range sp.Frontends {
			addFrontend(add, f, sp.Name.Protocol)
		}
	}
	addBystanders(add)
	return all
}

// addFrontend aims at a frontend and beside it.
func addFrontend(add func(netip.Addr, uint16, dataplane.Protocol), f *dataplane.Frontend, p dataplane.Protocol) {
	other := dataplane.TCP
	if p == dataplane.TCP {
		other = dataplane.UDP
	}
	if f.Kind == dataplane.NodePort {
		for _, a := range nodeAddrs(f.Family) {
			add(a, f.Port, p)
		}
		add(nodeAddrs(f.Family)[0], f.Port, other)
		return
	}
	add(f.Addr, f.Port, p)
	if f.Kind == dataplane.ClusterIP {
		add(f.Addr, f.Port, other)
		add(f.Addr, f.Port+1000, p)
		add(f.Addr, 0, ofFamily(f.Family, dataplane.ICMP, dataplane.ICMPv6))
	}
}

// nodeAddrs are the addresses of both nodes.
func nodeAddrs(f dataplane.Family) []netip.Addr {
	node4, node6, err1 := rig.Addrs("node")
	other4, other6, err2 := rig.Addrs("node2")
	if err1 != nil || err2 != nil {
		panic(fmt.Sprint(err1, err2)) // every rig has two nodes
	}
	return ofFamily(f, []netip.Addr{node4, rig.Alias4, other4}, []netip.Addr{node6, rig.Alias6, other6})
}

// addBystanders aims at what no Service has: the traffic that a proxy must let
// alone, and addresses that it may close.
func addBystanders(add func(netip.Addr, uint16, dataplane.Protocol)) {
	for _, host := range []string{"e2", "remote", "node"} {
		v4, v6, err := rig.Addrs(host)
		if err != nil {
			panic(err) // these hosts are in every rig
		}
		for _, a := range []netip.Addr{v4, v6} {
			add(a, targetPorts[0], dataplane.TCP)
			add(a, 9, dataplane.UDP)
		}
	}
	for _, a := range []netip.Addr{address("10.96.200.%d", 1), address("fd00:96::c8:%d", 1), address("10.96.9.%d", 9), address("fd00:96::9:%d", 9)} {
		add(a, 80, dataplane.TCP)
	}
}
