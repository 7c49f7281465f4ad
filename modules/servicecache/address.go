package servicecache

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// parseAddr reads an address as the Kubernetes API has always taken it: zeros
// in front of an octet mean nothing, and an IPv4 address in IPv6 clothing is an
// IPv4 address. No tool ever sees the text: iptables would read octals
// (CVE-2021-29923).
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(decimalOctets(s))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is no IP address", s)
	}
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone", s)
	}
	return a.Unmap(), nil
}

// parsePrefix reads a CIDR likewise; blanks around it mean nothing and host
// bits are masked (kubernetes#40590).
func parsePrefix(s string) (netip.Prefix, error) {
	addr, bits, _ := strings.Cut(strings.TrimSpace(s), "/")
	p, err := netip.ParsePrefix(decimalOctets(addr) + "/" + bits)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no CIDR", s)
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

func decimalOctets(s string) string {
	if !strings.Contains(s, ".0") && !strings.HasPrefix(s, "0") && !strings.Contains(s, ":0") {
		return s
	}
	head := ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		head, s = s[:i+1], s[i+1:]
	}
	if !strings.Contains(s, ".") {
		return head + s
	}
	octets := strings.Split(s, ".")
	for i, o := range octets {
		if t := strings.TrimLeft(o, "0"); t != "" {
			octets[i] = t
		} else if o != "" {
			octets[i] = "0"
		}
	}
	return head + strings.Join(octets, ".")
}

// special names the kind of an address that nobody may be sent to; link-local
// ones count for endpoints and externalIPs (CVE-2021-25737), while some load
// balancers have them.
func special(a netip.Addr, linkLocalToo bool) string {
	switch {
	case a.IsUnspecified():
		return "unspecified"
	case a.IsLoopback():
		return "loopback"
	case a.IsMulticast():
		return "multicast"
	case linkLocalToo && a.IsLinkLocalUnicast():
		return "link-local"
	}
	return ""
}

func sortAddrs(as []netip.Addr) []netip.Addr {
	slices.SortFunc(as, netip.Addr.Compare)
	return slices.Compact(as)
}

func sortPrefixes(ps []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ps, netip.Prefix.Compare)
	return slices.Compact(ps)
}

// byFamily is a value for each family.
type byFamily[T any] struct{ v4, v6 T }

func (b *byFamily[T]) of(f dataplane.Family) *T {
	if f == dataplane.IPv6 {
		return &b.v6
	}
	return &b.v4
}

func prefixFamily(p netip.Prefix) dataplane.Family { return dataplane.FamilyOf(p.Addr()) }

// firstOfFamily returns the first prefix of each family.
func firstOfFamily(ps []netip.Prefix) []netip.Prefix {
	var first []netip.Prefix
	for _, p := range ps {
		same := func(q netip.Prefix) bool { return prefixFamily(q) == prefixFamily(p) }
		if !slices.ContainsFunc(first, same) {
			first = append(first, p)
		}
	}
	return first
}
