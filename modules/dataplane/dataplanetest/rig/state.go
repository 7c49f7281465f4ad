package rig

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Conntrack lists the connections that the host tracks, of both families.
func (h *Host) Conntrack() ([]*netlink.ConntrackFlow, error) {
	var all []*netlink.ConntrackFlow
	for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		var flows []*netlink.ConntrackFlow
		err := uninterrupted(func() (err error) {
			flows, err = h.links.ConntrackTableList(netlink.ConntrackTable, family)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: list conntrack: %w", h.Name, err)
		}
		all = append(all, flows...)
	}
	return all, nil
}

// FlushConntrack makes the host forget all connections.
func (h *Host) FlushConntrack() error {
	if err := h.links.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("%s: flush conntrack: %w", h.Name, err)
	}
	return nil
}

// ForgetFlows makes the host forget the connections that unwanted names, by
// source and destination before translation.
func (h *Host) ForgetFlows(unwanted func(source, to netip.AddrPort) bool) error {
	for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := uninterrupted(func() error {
			_, err := h.links.ConntrackDeleteFilters(netlink.ConntrackTable, family, flowFilter(unwanted))
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: delete flows from conntrack: %w", h.Name, err)
		}
	}
	return nil
}

// uninterrupted repeats a dump that the kernel calls inconsistent.
func uninterrupted(dump func() error) error {
	err := dump()
	for range 10 {
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		err = dump()
	}
	return err
}

// flowFilter is a filter of package netlink.
type flowFilter func(source, to netip.AddrPort) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return f(endOf(flow.Forward.SrcIP, flow.Forward.SrcPort), endOf(flow.Forward.DstIP, flow.Forward.DstPort))
}

func endOf(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// Listening lists the local ends of the host's sockets that wait for clients:
// TCP listeners and unconnected UDP sockets, sorted.
func (h *Host) Listening(proto Protocol) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	err := h.onNetwork(func() error {
		for _, table := range []Protocol{proto, proto + "6"} {
			found, err := readSocketTable("/proc/thread-self/net/" + string(table))
			if err != nil {
				return err
			}
			all = append(all, found...)
		}
		return nil
	})
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all, err
}

// readSocketTable reads a socket table of /proc and keeps the sockets in the
// states of TCP listeners (0A) and unconnected UDP sockets (07).
func readSocketTable(path string) ([]netip.AddrPort, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []netip.AddrPort
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != "0A" && fields[3] != "07" {
			continue
		}
		local, err := parseSocketAddr(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		found = append(found, local)
	}
	return found, lines.Err()
}

// parseSocketAddr reads an address in the form of /proc/net/tcp: 32-bit words in
// the byte order of the machine, which is little endian on all that we run on.
func parseSocketAddr(s string) (netip.AddrPort, error) {
	addr, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("socket address %q: %w", s, err)
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	ip, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("socket address %q: bad length", s)
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("socket address %q: %w", s, err)
	}
	return netip.AddrPortFrom(ip, uint16(p)), nil
}
