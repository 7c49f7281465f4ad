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

// keepConntrackRules is a chain that only makes the kernel track connections.
const keepConntrackRules = `table inet rig {
	chain keep-conntrack {
		type filter hook prerouting priority 300; policy accept;
		ct state established
	}
}`

// keepConntrack keeps the node tracking connections when no other rule does.
func (r *Rig) keepConntrack() error {
	if _, err := r.Node.RunInput(context.Background(), keepConntrackRules, "nft", "-f", "-"); err != nil {
		return fmt.Errorf("keep conntrack on: %w", err)
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
