package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses that the rest of the benchmark knows.
var (
	// API is where the API server answers: the bridge of the caller's namespace.
	API = netip.MustParseAddr("192.168.77.1")
	// Node is the address of the node with a proxy.
	Node = netip.MustParseAddr("192.168.77.2")
	// Endpoints is the range of the endpoints that are there from the start.
	Endpoints = netip.MustParsePrefix("10.128.0.0/10")
	// Changed is the range of the endpoints that changes bring.
	Changed = netip.MustParsePrefix("10.192.0.0/11")
	// Pods is the range of the pods of all nodes.
	Pods = netip.MustParsePrefix("10.244.0.0/16")
)

const (
	// Bridge joins the node, and the kernel of a guest, to the API server.
	Bridge = "api0"
	// nodeMAC stays the same, so that the next node at this address need not be
	// looked for.
	nodeMAC = "02:00:c0:a8:4d:02"
)

var (
	podRange   = netip.MustParsePrefix("10.244.1.0/24")
	podGateway = netip.MustParsePrefix("10.244.1.1/24")
	podAddress = netip.MustParsePrefix("10.244.1.2/24")
	farNode    = netip.MustParsePrefix("192.168.78.1/30")
	farAddress = netip.MustParsePrefix("192.168.78.2/30")
	everywhere = netip.MustParsePrefix("0.0.0.0/0")
)

// Network is a node and who talks through it.
type Network struct {
	Node, Client, Far *Host
	joined            bool // to the bridge
}

// MakeBridge makes the caller's namespace the place where the API server is.
func MakeBridge(address netip.Addr) error {
	return atAPI(func(api *Host) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = Bridge
		if err := api.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s: %w", Bridge, err)
		}
		return errors.Join(api.up("lo"), api.up(Bridge), api.address(Bridge, netip.PrefixFrom(address, 24)))
	})
}

// atAPI does something to the caller's namespace.
func atAPI(do func(api *Host) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return do(&Host{name: "api", links: h})
}

// New builds a network. A node that is to run a proxy has a link to the API
// server; one without is the direct path to compare with.
func New(withProxy bool) (*Network, error) {
	n := new(Network)
	for name, at := range map[string]**Host{"node": &n.Node, "client": &n.Client, "far": &n.Far} {
		h, err := newHost(name)
		if err != nil {
			return nil, errors.Join(err, n.Close())
		}
		*at = h
	}
	steps := []func() error{n.settings, n.join, n.route}
	if withProxy {
		steps = append(steps, n.joinAPI)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// Close lets go of the namespaces. They end a while later, but the place at the
// bridge is free at once.
func (n *Network) Close() error {
	var errs []error
	if n.joined {
		errs = append(errs, RemoveLink(peerOfNode))
	}
	for _, h := range []*Host{n.Node, n.Client, n.Far} {
		if h != nil {
			errs = append(errs, h.close())
		}
	}
	return errors.Join(errs...)
}

func (n *Network) settings() error {
	var errs []error
	for _, h := range []*Host{n.Node, n.Client, n.Far} {
		errs = append(errs, h.up("lo"), h.Sysctl("net.ipv4.conf.all.rp_filter", "0"), h.Sysctl("net.ipv4.conf.default.rp_filter", "0"))
	}
	// A new connection needs a source port that no recent one has.
	return errors.Join(append(errs, n.Node.Sysctl("net.ipv4.ip_forward", "1"), n.Far.Sysctl("net.ipv4.ip_forward", "0"),
		n.Client.Sysctl("net.ipv4.ip_local_port_range", "1024 65535"))...)
}

func (n *Network) join() error {
	return errors.Join(
		veth(n.Node, "pod0", n.Client, "eth0"), veth(n.Node, "far0", n.Far, "eth0"),
		n.Node.address("pod0", podGateway), n.Client.address("eth0", podAddress),
		n.Node.address("far0", farNode), n.Far.address("eth0", farAddress),
	)
}

func (n *Network) route() error {
	return errors.Join(
		n.Client.route("eth0", everywhere, podGateway.Addr()),
		n.Node.route("far0", everywhere, farAddress.Addr()),
		n.Far.route("eth0", podRange, farNode.Addr()),
		n.Far.local(Endpoints), n.Far.local(Changed),
	)
}

// joinAPI connects the node to the bridge of the caller's namespace.
func (n *Network) joinAPI() error {
	return atAPI(func(api *Host) error {
		if err := veth(n.Node, "eth0", nil, ""); err != nil {
			return err
		}
		n.joined = true
		return errors.Join(n.Node.mac("eth0", nodeMAC), n.Node.address("eth0", netip.PrefixFrom(Node, 24)), api.port(peerOfNode))
	})
}

// Uplink adds an interface of the caller's namespace to the bridge.
func Uplink(name string) error {
	return atAPI(func(api *Host) error { return api.port(name) })
}

// RoutePods sends what is for the node's pods to the node.
func RoutePods() error {
	return atAPI(func(api *Host) error { return api.route(Bridge, podRange, Node) })
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
