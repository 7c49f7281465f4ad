package netfilter

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// Table is one of the tables of iptables.
type Table string

// The tables that planes write or follow a packet through.
const (
	Raw    Table = "raw"
	Mangle Table = "mangle"
	NAT    Table = "nat"
	Filter Table = "filter"
)

// Tables lists every table that this package knows, in the order in which
// the kernel visits them at PREROUTING.
func Tables() []Table { return []Table{Raw, Mangle, NAT, Filter} }

// Chain is a chain with all its rules.
type Chain struct {
	Name string
	// Policy is ACCEPT or DROP for a chain that the kernel owns, and empty
	// for every other one.
	Policy string
	Rules  []Rule
}

// Rule is one rule, without the chain that holds it. Two rules are equal
// with == exactly if the kernel prints them with the same bytes, so a plane
// compares what it wants with what there is without rendering either.
//
// The zero value of every field means "does not matter"; a zero Rule matches
// every packet and does nothing.
type Rule struct {
	Source      AddrMatch
	Destination AddrMatch
	In          IfaceMatch
	Out         IfaceMatch
	Protocol    ProtocolMatch
	SourcePort  PortMatch
	DestPort    PortMatch

	// Comment must come from [Comment] if it holds text from outside.
	Comment    string
	SourceType AddrTypeMatch
	DestType   AddrTypeMatch
	// LimitIfaceIn restricts the types to addresses of the incoming interface.
	LimitIfaceIn bool
	Conntrack    ConntrackMatch
	Mark         MarkMatch
	// Sets are matched in order; the first is filled first.
	Sets [2]SetMatch
	// Probability that the rule matches, in units of 2^-31 as the kernel
	// counts; see [OneIn]. Zero means no statistic match at all.
	Probability uint32

	Target Target

	// Text is the rule as the kernel prints it if that is not what the other
	// fields print: options that this package does not know, or an order
	// that it would not write. It is empty in rules that a plane makes.
	Text string
	// Opaque says that the other fields do not tell the whole rule.
	Opaque bool
}

// AddrMatch matches the addresses that equal Addr in the bits of Mask. The
// mask need not be contiguous. An invalid Addr means any address.
type AddrMatch struct {
	Addr netip.Addr
	Mask netip.Addr
	Not  bool
}

// MatchAddr matches one address.
func MatchAddr(a netip.Addr) AddrMatch {
	return MatchPrefix(netip.PrefixFrom(a, a.BitLen()))
}

// MatchPrefix matches the addresses of a prefix. A prefix of length zero is
// no match at all, because the kernel does not keep one.
func MatchPrefix(p netip.Prefix) AddrMatch {
	if p.Bits() <= 0 {
		return AddrMatch{}
	}
	return AddrMatch{Addr: p.Masked().Addr(), Mask: maskOf(p.Bits(), p.Addr().Is4())}
}

// MatchMask matches the addresses that agree with addr in the bits of mask,
// such as the last four: addr 0.0.0.5, mask 0.0.0.15.
func MatchMask(addr, mask netip.Addr) AddrMatch {
	m := AddrMatch{Addr: and(addr, mask), Mask: mask}
	if mask.IsUnspecified() || !mask.IsValid() {
		return AddrMatch{}
	}
	return m
}

// Negated is the opposite match.
func (m AddrMatch) Negated() AddrMatch {
	m.Not = !m.Not
	return m
}

// Contains says whether a packet with this address matches.
func (m AddrMatch) Contains(a netip.Addr) bool {
	if !m.Addr.IsValid() {
		return true
	}
	return (a.BitLen() == m.Addr.BitLen() && and(a, m.Mask) == m.Addr) != m.Not
}

func and(a, mask netip.Addr) netip.Addr {
	if a.Is4() {
		x, m := a.As4(), mask.As4()
		for i := range x {
			x[i] &= m[i]
		}
		return netip.AddrFrom4(x)
	}
	x, m := a.As16(), mask.As16()
	for i := range x {
		x[i] &= m[i]
	}
	return netip.AddrFrom16(x)
}

func maskOf(bits int, is4 bool) netip.Addr {
	var ones [16]byte
	for i := range bits {
		ones[i/8] |= 0x80 >> (i % 8)
	}
	if is4 {
		return netip.AddrFrom4([4]byte(ones[:4]))
	}
	return netip.AddrFrom16(ones)
}

// IfaceMatch matches an interface by name; a final + stands for any rest.
type IfaceMatch struct {
	Name string
	Not  bool
}

// ProtocolMatch matches a protocol; number zero means any.
type ProtocolMatch struct {
	Number dataplane.Protocol
	Not    bool
}

// Is matches one protocol.
func Is(p dataplane.Protocol) ProtocolMatch { return ProtocolMatch{Number: p} }

// PortMatch matches the ports from First to Last. It needs a rule that
// matches the protocol TCP, UDP or SCTP. Last zero means any port.
type PortMatch struct {
	First, Last uint16
	Not         bool
}

// Port matches one port.
func Port(p uint16) PortMatch { return PortMatch{First: p, Last: p} }

// AddrTypeMatch matches what the routing tables say of an address.
type AddrTypeMatch uint8

// Local addresses are those of this node, on whatever device.
const (
	AnyType AddrTypeMatch = iota
	Local
	NotLocal
)

// ConntrackMatch matches what connection tracking knows of the packet's flow.
type ConntrackMatch struct {
	// States is a set of states, one of which must hold; zero means any.
	States StateSet
	// NotStates turns States around.
	NotStates bool
	// OrigDst is the destination before DNAT; invalid means any.
	OrigDst netip.Prefix
	// OrigDstPort is the port before DNAT.
	OrigDstPort PortMatch
}

// StateSet is a set of connection tracking states.
type StateSet uint8

// The states. SNAT and DNAT hold for flows whose address was translated.
const (
	StateInvalid StateSet = 1 << iota
	StateNew
	StateRelated
	StateEstablished
	StateUntracked
	StateSNAT
	StateDNAT
)

// MarkMatch matches packets whose mark equals Value in the bits of Mask.
// Mask zero means any mark.
type MarkMatch struct {
	Value, Mask uint32
	Not         bool
}

// MatchMark matches the bits of mask in a packet's mark.
func MatchMark(value, mask uint32) MarkMatch { return MarkMatch{Value: value, Mask: mask} }

// SetMatch matches packets whose addresses and ports are in a set. Parts
// says which, such as "src" or "dst,dst,src". An empty Name means no match.
type SetMatch struct {
	Name  string
	Parts string
	Not   bool
}

// OneIn is the probability 1/n, as the statistic match of the kernel counts.
// The last of n endpoints needs no statistic: OneIn(1) is zero.
func OneIn(n int) uint32 {
	if n <= 1 {
		return 0
	}
	return uint32((certain + uint64(n)/2) / uint64(n))
}

// certain is the probability 1 in the kernel's units.
const certain = 1 << 31

// SetNames lists the sets that a rule matches or changes.
func (r *Rule) SetNames() []string {
	var names []string
	for _, m := range r.Sets {
		if m.Name != "" {
			names = append(names, m.Name)
		}
	}
	switch r.Target.Kind {
	case TargetAddSet, TargetDelSet, TargetMapMark:
		names = append(names, r.Target.Name)
	}
	return names
}
