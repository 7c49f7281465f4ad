package rig

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// firstIndex keeps the interface numbers at the two ends of a veth pair apart.
// Where they are equal the kernel takes the pair for an ordinary device and may
// report its carrier up to one second late.
const firstIndex = 100

// addVeth joins a and b.
func addVeth(a *Host, aName string, aIndex int, b *Host, bName string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = aName, aIndex
	err := a.links.LinkAdd(&netlink.Veth{
		LinkAttrs:     attrs,
		PeerName:      bName,
		PeerNamespace: netlink.NsFd(b.net.Fd()),
	})
	if err != nil {
		return fmt.Errorf("join %s of %s to %s of %s: %w", aName, a.Name, bName, b.Name, err)
	}
	return nil
}

func (h *Host) addBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := h.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("%s: add bridge %s: %w", h.Name, name, err)
	}
	return nil
}

// addPort makes an interface a port of a bridge that sends frames back through
// the port they came in by: a pod may reach itself through a Service.
func (h *Host) addPort(bridge, port string) error {
	b, err := h.links.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("%s: bridge %s: %w", h.Name, bridge, err)
	}
	p, err := h.links.LinkByName(port)
	if err != nil {
		return fmt.Errorf("%s: port %s: %w", h.Name, port, err)
	}
	if err := h.links.LinkSetMaster(p, b); err != nil {
		return fmt.Errorf("%s: add %s to bridge %s: %w", h.Name, port, bridge, err)
	}
	if err := h.links.LinkSetHairpin(p, true); err != nil {
		return fmt.Errorf("%s: hairpin of %s: %w", h.Name, port, err)
	}
	return nil
}

func (h *Host) linkUp(name string) error {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: interface %s: %w", h.Name, name, err)
	}
	if err := h.links.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: set %s up: %w", h.Name, name, err)
	}
	return nil
}

// awaitCarrier waits until all interfaces but bridges carry packets.
func (h *Host) awaitCarrier() error {
	return await(h.Name+": carrier", func() (missing string, err error) {
		links, err := h.links.LinkList()
		return firstWithoutCarrier(links), err
	})
}

// awaitAddrs waits until the host answers neighbour solicitations for all its
// IPv6 addresses. The kernel joins their multicast groups some time after it has
// taken the addresses, and a client whose first solicitation is lost waits for a
// whole second.
func (h *Host) awaitAddrs() error {
	return await(h.Name+": address", func() (missing string, err error) {
		addrs, err := h.links.AddrList(nil, netlink.FAMILY_V6)
		return firstTentative(addrs), err
	})
}

// awaitTimeout is far more than anything takes, so that only a broken rig meets
// it.
const awaitTimeout = 10 * time.Second

// await asks what is missing until nothing is.
func await(what string, missing func() (string, error)) error {
	timeout := time.After(awaitTimeout)
	for {
		name, err := missing()
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted): // something is changing just now
			name = "list"
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case name == "":
			return nil
		}
		select {
		case <-timeout:
			return fmt.Errorf("%s: %s not ready after %v", what, name, awaitTimeout)
		case <-time.After(time.Millisecond):
		}
	}
}

func firstWithoutCarrier(links []netlink.Link) string {
	for _, l := range links {
		attrs := l.Attrs()
		if attrs.Flags&net.FlagLoopback != 0 || l.Type() == "bridge" {
			continue
		}
		if attrs.OperState != netlink.OperUp {
			return attrs.Name
		}
	}
	return ""
}

func firstTentative(addrs []netlink.Addr) string {
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return a.IPNet.String()
		}
	}
	return ""
}

// AddAddr puts an address on an interface of the host.
func (h *Host) AddAddr(iface string, addr netip.Prefix) error {
	if err := h.addAddrs(iface, addr); err != nil {
		return err
	}
	return h.awaitAddrs()
}

func (h *Host) addAddrs(iface string, addrs ...netip.Prefix) error {
	for _, a := range addrs {
		if err := h.addAddr(iface, a, netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) addAddr(iface string, addr netip.Prefix, scope netlink.Scope) error {
	link, err := h.links.LinkByName(iface)
	if err != nil {
		return fmt.Errorf("%s: interface %s: %w", h.Name, iface, err)
	}
	// Without prefix routes every route of the rig is one that it asked for.
	err = h.links.AddrAdd(link, &netlink.Addr{IPNet: ipNet(addr), Scope: int(scope), Flags: unix.IFA_F_NOPREFIXROUTE})
	if err != nil {
		return fmt.Errorf("%s: add %s to %s: %w", h.Name, addr, iface, err)
	}
	return nil
}

// DelAddr takes an address from an interface of the host.
func (h *Host) DelAddr(iface string, addr netip.Prefix) error {
	link, err := h.links.LinkByName(iface)
	if err != nil {
		return fmt.Errorf("%s: interface %s: %w", h.Name, iface, err)
	}
	if err := h.links.AddrDel(link, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
		return fmt.Errorf("%s: delete %s from %s: %w", h.Name, addr, iface, err)
	}
	return nil
}

// route is one route of a host; via and source may be left out.
type route struct {
	to     netip.Prefix
	iface  string
	via    netip.Addr
	source netip.Addr
}

func (h *Host) addRoutes(routes ...route) error {
	for _, r := range routes {
		if err := h.addRoute(r); err != nil {
			return fmt.Errorf("%s: add route to %s via %s: %w", h.Name, r.to, r.iface, err)
		}
	}
	return nil
}

func (h *Host) addRoute(r route) error {
	link, err := h.links.LinkByName(r.iface)
	if err != nil {
		return err
	}
	nr := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(r.to), Scope: netlink.SCOPE_LINK}
	if r.via.IsValid() {
		nr.Gw, nr.Scope, nr.Flags = r.via.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	if r.source.IsValid() {
		nr.Src = r.source.AsSlice()
	}
	return h.links.RouteAdd(nr)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
