package dataplane

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Family is an IP address family.
type Family uint8

// The two address families, numbered as the IP version field is.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both, in the order in which they are shown.
var families = [...]Family{IPv4, IPv6}

// Families returns both families, IPv4 first.
func Families() []Family { return families[:] }

// FamilyOf returns the family of an address; an IPv4 address in IPv6 clothing
// is IPv4. The zero address has family 0.
func FamilyOf(a netip.Addr) Family {
	switch {
	case a.Is4(), a.Is4In6():
		return IPv4
	case a.Is6():
		return IPv6
	}
	return 0
}

// Unspecified returns 0.0.0.0 or ::.
func (f Family) Unspecified() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Loopback returns 127.0.0.1 or ::1.
func (f Family) Loopback() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Bits returns the length of an address, 32 or 128.
func (f Family) Bits() int {
	if f == IPv6 {
		return 128
	}
	return 32
}

// String returns "IPv4" or "IPv6", as the Kubernetes API and kube-proxy's
// metrics spell them.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "Family(" + strconv.Itoa(int(f)) + ")"
}

// Protocol is an IP protocol by its IANA number.
type Protocol uint8

// TCP, UDP and SCTP carry Services. ICMP and ICMPv6 occur only in a [Flow]:
// an echo request to a Service address is a flow too.
const (
	ICMP   Protocol = 1
	TCP    Protocol = 6
	UDP    Protocol = 17
	ICMPv6 Protocol = 58
	SCTP   Protocol = 132
)

var protocolNames = map[Protocol]string{ICMP: "ICMP", TCP: "TCP", UDP: "UDP", ICMPv6: "ICMPv6", SCTP: "SCTP"}

// String returns the name that the Kubernetes API uses, such as "TCP".
func (p Protocol) String() string {
	if s, ok := protocolNames[p]; ok {
		return s
	}
	return "Protocol(" + strconv.Itoa(int(p)) + ")"
}

// HasPorts tells whether flows of this protocol have port numbers.
func (p Protocol) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }

// ParseProtocol reads a name as String writes it, in either case. It accepts
// no numbers: a Service has no use for them.
func ParseProtocol(s string) (Protocol, error) {
	switch s {
	case "TCP", "tcp":
		return TCP, nil
	case "UDP", "udp":
		return UDP, nil
	case "SCTP", "sctp":
		return SCTP, nil
	case "ICMP", "icmp":
		return ICMP, nil
	case "ICMPv6", "icmpv6", "ipv6-icmp":
		return ICMPv6, nil
	}
	return 0, fmt.Errorf("unknown protocol %q: want TCP, UDP, SCTP, ICMP or ICMPv6", s)
}
