package rig

import (
	"fmt"
	"net/netip"
)

// Ranges of the rig. Only the Service ranges are free for tests to use.
var (
	// ServiceRange4 and ServiceRange6 are routed to the node and used by nobody.
	ServiceRange4 = netip.MustParsePrefix("10.96.0.0/16")
	ServiceRange6 = netip.MustParsePrefix("fd00:96::/112")
	// ClusterRange4 and ClusterRange6 hold the pods of both nodes.
	ClusterRange4 = netip.MustParsePrefix("10.244.0.0/16")
	ClusterRange6 = netip.MustParsePrefix("fd00:244::/32")
	// PodRange4 and PodRange6 hold the pods of the node under test.
	PodRange4 = netip.MustParsePrefix("10.244.1.0/24")
	PodRange6 = netip.MustParsePrefix("fd00:244:1::/64")
	// RemotePodRange4 and RemotePodRange6 hold the pod of node2.
	RemotePodRange4 = netip.MustParsePrefix("10.244.2.0/24")
	RemotePodRange6 = netip.MustParsePrefix("fd00:244:2::/64")
	// NodeRange4 and NodeRange6 are the segment that joins up, node and node2.
	NodeRange4 = netip.MustParsePrefix("192.168.77.0/24")
	NodeRange6 = netip.MustParsePrefix("fd00:77::/64")
)

// Alias4 and Alias6 are second addresses of the node under test.
var (
	Alias4 = netip.MustParseAddr("192.168.77.11")
	Alias6 = netip.MustParseAddr("fd00:77::11")
)

var (
	anywhere4 = netip.MustParsePrefix("0.0.0.0/0")
	anywhere6 = netip.MustParsePrefix("::/0")
	router6   = netip.MustParseAddr("fe80::1") // the node, as its pods see it
)

// addresses is what one host answers to, one per family.
type addresses struct{ v4, v6 netip.Addr }

var (
	nodeAddrs    = addresses{netip.MustParseAddr("192.168.77.10"), netip.MustParseAddr("fd00:77::10")}
	node2Addrs   = addresses{netip.MustParseAddr("192.168.77.20"), netip.MustParseAddr("fd00:77::20")}
	gatewayAddrs = addresses{netip.MustParseAddr("192.168.77.1"), netip.MustParseAddr("fd00:77::1")}
	outsideAddrs = addresses{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("fd00:203::7")}
)

// Addrs returns the addresses that a host of that name has in every rig.
func Addrs(name string) (v4, v6 netip.Addr, err error) {
	var a addresses
	var number int
	switch {
	case name == "node":
		a = nodeAddrs
	case name == "node2":
		a = node2Addrs
	case name == "up":
		a = outsideAddrs
	case name == "c":
		a = podAddrs(1, 2)
	case name == "remote":
		a = podAddrs(2, 11)
	default:
		if _, err := fmt.Sscanf(name, "e%d", &number); err != nil || number < 1 || number > 200 {
			return a.v4, a.v6, fmt.Errorf("no host is named %q", name)
		}
		a = podAddrs(1, 10+number)
	}
	return a.v4, a.v6, nil
}

// podAddrs numbers pods alike in both families: the digits of the last part are
// the same.
func podAddrs(node, pod int) addresses {
	return addresses{
		netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", node, pod)),
		netip.MustParseAddr(fmt.Sprintf("fd00:244:%d::%d", node, pod)),
	}
}

// single is the range that holds one address only.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
