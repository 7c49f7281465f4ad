package rig

import (
	"cmp"
	"errors"
	"net/netip"
)

// address gives all hosts their addresses and waits until these work: no route
// may name an address as its source earlier.
func (r *Rig) address() error {
	// Among equals the kernel prefers the oldest IPv4 and the youngest IPv6
	// address as the source: the alias must be neither.
	alias4, alias6 := netip.PrefixFrom(Alias4, NodeRange4.Bits()), netip.PrefixFrom(Alias6, NodeRange6.Bits())
	if err := r.Node.addAddrs("eth0", alias6); err != nil {
		return err
	}
	for _, h := range []*Host{r.Node, r.Node2} {
		err := h.addAddrs("eth0", netip.PrefixFrom(h.Addr4, NodeRange4.Bits()), netip.PrefixFrom(h.Addr6, NodeRange6.Bits()))
		if err != nil {
			return err
		}
	}
	if err := r.Node.addAddrs("eth0", alias4); err != nil {
		return err
	}
	for _, pod := range append(r.Pods(), r.Remote) {
		if err := pod.addAddrs("eth0", single(pod.Addr4), single(pod.Addr6)); err != nil {
			return err
		}
	}
	err := errors.Join(
		r.Up.addAddrs(segment, netip.PrefixFrom(gatewayAddrs.v4, NodeRange4.Bits()), netip.PrefixFrom(gatewayAddrs.v6, NodeRange6.Bits())),
		r.Up.addAddrs("lo", single(outsideAddrs.v4), single(outsideAddrs.v6)),
	)
	for _, h := range r.Hosts() {
		err = errors.Join(err, h.awaitAddrs())
	}
	return err
}

func (r *Rig) addRoutes() error {
	errs := []error{
		r.routeRouter(),
		routeNode(r.Node, gatewayAddrs, RemotePodRange4, RemotePodRange6, node2Addrs),
		routeNode(r.Node2, nodeAddrs, PodRange4, PodRange6, nodeAddrs),
		r.Node2.addRoutes(
			route{to: single(outsideAddrs.v4), iface: "eth0", via: gatewayAddrs.v4},
			route{to: single(outsideAddrs.v6), iface: "eth0", via: gatewayAddrs.v6},
		),
		routePod(r.Node2, r.Remote, r.PodIface(r.Remote)),
	}
	for _, pod := range r.Pods() {
		errs = append(errs, routePod(r.Node, pod, cmp.Or(r.opts.Bridge, r.PodIface(pod))))
	}
	return errors.Join(errs...)
}

// routeRouter makes up a client that uses its outside address wherever it sends
// to, and sends to the node what it does not know. It and node2 reach each other
// and node2's pod without the node.
func (r *Rig) routeRouter() error {
	return r.Up.addRoutes(
		route{to: NodeRange4, iface: segment, source: outsideAddrs.v4},
		route{to: NodeRange6, iface: segment, source: outsideAddrs.v6},
		route{to: RemotePodRange4, iface: segment, via: node2Addrs.v4, source: outsideAddrs.v4},
		route{to: RemotePodRange6, iface: segment, via: node2Addrs.v6, source: outsideAddrs.v6},
		route{to: anywhere4, iface: segment, via: nodeAddrs.v4, source: outsideAddrs.v4},
		route{to: anywhere6, iface: segment, via: nodeAddrs.v6, source: outsideAddrs.v6},
	)
}

// routeNode gives a node its default route and the way to the other node's pods.
func routeNode(h *Host, gateway addresses, pods4, pods6 netip.Prefix, other addresses) error {
	return h.addRoutes(
		route{to: NodeRange4, iface: "eth0", source: h.Addr4},
		route{to: NodeRange6, iface: "eth0", source: h.Addr6},
		route{to: anywhere4, iface: "eth0", via: gateway.v4},
		route{to: anywhere6, iface: "eth0", via: gateway.v6},
		route{to: pods4, iface: "eth0", via: other.v4},
		route{to: pods6, iface: "eth0", via: other.v6},
	)
}

// routePod routes between a node and one of its pods.
func routePod(node, pod *Host, iface string) error {
	return errors.Join(
		pod.addRoutes(
			route{to: anywhere4, iface: "eth0", via: node.Addr4},
			route{to: anywhere6, iface: "eth0", via: router6},
		),
		node.addRoutes(
			route{to: single(pod.Addr4), iface: iface},
			route{to: single(pod.Addr6), iface: iface},
		))
}
