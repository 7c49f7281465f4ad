package rig

import (
	"bufio"
	"encoding/hex"
	"fmt"
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
		flows, err := h.links.ConntrackTableList(netlink.ConntrackTable, family)
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
	defer f.Close() //nolint:errcheck // only read
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
