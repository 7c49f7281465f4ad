package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// veth joins two hosts; without b the other end, named peerOfNode, is in the
// namespace of the process.
func veth(a *Host, aName string, b *Host, bName string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: bName}
	ends := map[*Host]string{a: aName}
	if b == nil {
		here, err := os.Open("/proc/self/ns/net")
		if err != nil {
			return err
		}
		defer here.Close()
		link.PeerName, link.PeerNamespace = peerOfNode, netlink.NsFd(here.Fd())
	} else {
		link.PeerNamespace = netlink.NsFd(b.ns.Fd())
		ends[b] = bName
	}
	if err := a.links.LinkAdd(link); err != nil {
		return fmt.Errorf("%s: add %s: %w", a.name, aName, err)
	}
	for h, name := range ends {
		if err := h.up(name); err != nil {
			return err
		}
	}
	return nil
}

// peerOfNode is the bridge's end of the node's link.
const peerOfNode = "node0"

// port makes an interface a port of the bridge.
func (h *Host) port(name string) error {
	bridge, err := h.links.LinkByName(Bridge)
	if err != nil {
		return fmt.Errorf("%s: %w", Bridge, err)
	}
	port, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := h.links.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("add %s to %s: %w", name, Bridge, err)
	}
	return h.up(name)
}

func (h *Host) up(name string) error {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", h.name, name, err)
	}
	if err := h.links.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: set %s up: %w", h.name, name, err)
	}
	return nil
}

func (h *Host) mac(name, address string) error {
	hardware, err := net.ParseMAC(address)
	if err != nil {
		return err
	}
	link, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", h.name, name, err)
	}
	return h.links.LinkSetHardwareAddr(link, hardware)
}

func (h *Host) address(name string, address netip.Prefix) error {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", h.name, name, err)
	}
	if err := h.links.AddrAdd(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		return fmt.Errorf("%s: add %s to %s: %w", h.name, address, name, err)
	}
	return nil
}

func (h *Host) route(name string, to netip.Prefix, via netip.Addr) error {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", h.name, name, err)
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Gw: via.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
	if err := h.links.RouteReplace(r); err != nil {
		return fmt.Errorf("%s: route to %s: %w", h.name, to, err)
	}
	return nil
}

// local makes the host answer for a whole range.
func (h *Host) local(addresses netip.Prefix) error {
	lo, err := h.links.LinkByName("lo")
	if err != nil {
		return err
	}
	r := &netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: ipNet(addresses), Table: unix.RT_TABLE_LOCAL,
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
	}
	if err := h.links.RouteAdd(r); err != nil {
		return fmt.Errorf("%s: answer for %s: %w", h.name, addresses, err)
	}
	return nil
}

// AddTap adds an interface that another kernel can be at the other end of, and
// makes it a port of the bridge.
func AddTap(name string) error {
	return atAPI(func(api *Host) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI}
		if err := api.links.LinkAdd(tap); err != nil {
			return fmt.Errorf("add tap %s: %w", name, err)
		}
		return api.port(name)
	})
}

// RemoveLink removes an interface of the caller's namespace.
func RemoveLink(name string) error {
	return atAPI(func(api *Host) error {
		link, err := api.links.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return api.links.LinkDel(link)
	})
}
