package rig

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// joinSegment connects node and node2 to the bridge of up.
func (r *Rig) joinSegment() error {
	up := r.Up
	if err := up.addBridge(segment); err != nil {
		return err
	}
	for i, h := range []*Host{r.Node, r.Node2} {
		if err := addVeth(up, h.Name, firstIndex+i, h, "eth0"); err != nil {
			return err
		}
		if err := errors.Join(up.addPort(segment, h.Name), h.linkUp("eth0"), up.linkUp(h.Name)); err != nil {
			return err
		}
	}
	// A bridge set up after its ports has carrier from the start.
	if err := up.awaitCarrier(); err != nil {
		return err
	}
	return up.linkUp(segment)
}

// segment is the bridge that joins the nodes.
const segment = "br0"

// joinPods connects each pod to its node.
func (r *Rig) joinPods() error {
	if err := joinPods(r.Node, r.opts.PodIface, r.opts.Bridge, r.Pods()); err != nil {
		return err
	}
	return joinPods(r.Node2, r.opts.PodIface, "", []*Host{r.Remote})
}

// joinPods connects pods to a node: each by a route, or all by a bridge.
func joinPods(node *Host, prefix, bridge string, pods []*Host) error {
	if bridge != "" {
		if err := node.addBridge(bridge); err != nil {
			return err
		}
	}
	for i, pod := range pods {
		if err := joinPod(node, prefix+pod.Name, firstIndex+i, bridge, pod); err != nil {
			return err
		}
	}
	if err := node.awaitCarrier(); err != nil {
		return err
	}
	if bridge != "" {
		return errors.Join(node.linkUp(bridge), node.addRouter6(bridge))
	}
	return nil
}

func joinPod(node *Host, iface string, index int, bridge string, pod *Host) error {
	if err := addVeth(node, iface, index, pod, "eth0"); err != nil {
		return err
	}
	if err := errors.Join(pod.linkUp("eth0"), node.linkUp(iface)); err != nil {
		return err
	}
	if bridge != "" {
		return node.addPort(bridge, iface)
	}
	return node.addRouter6(iface)
}

// addRouter6 makes the node the IPv6 router of an interface. IPv4 needs no
// such address: the node answers ARP for its address on every interface.
func (h *Host) addRouter6(iface string) error {
	return h.addAddr(iface, netip.PrefixFrom(router6, 64), netlink.SCOPE_LINK)
}

// introduce makes neighbours known to each other: of a burst of packets to one
// that is not, the kernel keeps only the first hundred or so.
func (r *Rig) introduce() error {
	var pings []func() Result
	meet := func(h *Host, a addresses) {
		for _, to := range []netip.Addr{a.v4, a.v6} {
			pings = append(pings, func() Result { return h.Ping(context.Background(), to, awaitTimeout) })
		}
	}
	for _, pod := range r.Pods() {
		meet(pod, nodeAddrs)
	}
	meet(r.Remote, node2Addrs)
	meet(r.Node, gatewayAddrs)
	meet(r.Node, node2Addrs)
	meet(r.Node2, gatewayAddrs)
	errs := make([]error, len(pings))
	Each(len(pings), func(i int) { errs[i] = pings[i]().Err })
	return errors.Join(errs...)
}

// PodIface is the node's interface to one of its pods.
func (r *Rig) PodIface(pod *Host) string { return r.opts.PodIface + pod.Name }

// InInterface is the node's interface through which a host's packets come in; it
// is empty for the node itself.
func (r *Rig) InInterface(from *Host) string {
	switch {
	case from == r.Node:
		return ""
	case !slices.Contains(r.Pods(), from):
		return "eth0"
	case r.opts.Bridge != "":
		return r.opts.Bridge
	}
	return r.PodIface(from)
}

// A chain, or a rule, that only makes the kernel track connections.
const (
	keepConntrackNFT = `table inet rig {
	chain keep-conntrack {
		type filter hook prerouting priority 300; policy accept;
		ct state established
	}
}`
	keepConntrackLegacy = `*mangle
-A PREROUTING -m conntrack --ctstate ESTABLISHED -m comment --comment "keep conntrack on"
COMMIT
`
)

// keepConntrack keeps the node tracking connections when no other rule does. A
// kernel without nftables for IP (user-mode-linux) has the older tables.
func (r *Rig) keepConntrack() error {
	ctx := context.Background()
	_, err := r.Node.RunInput(ctx, keepConntrackNFT, "nft", "-f", "-")
	if err == nil {
		return nil
	}
	_, err4 := r.Node.RunInput(ctx, keepConntrackLegacy, "iptables-legacy-restore", "--noflush")
	_, err6 := r.Node.RunInput(ctx, keepConntrackLegacy, "ip6tables-legacy-restore", "--noflush")
	if err4 != nil || err6 != nil {
		return fmt.Errorf("keep conntrack on: %w", errors.Join(err, err4, err6))
	}
	return nil
}

func (r *Rig) close() error {
	var errs []error
	for _, h := range r.Hosts() {
		errs = append(errs, h.close())
	}
	return errors.Join(append(errs, r.mnt.Close())...)
}
