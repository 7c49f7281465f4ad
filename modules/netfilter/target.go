package netfilter

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// TargetKind says what a rule does with a packet.
type TargetKind uint8

// The targets that planes use.
const (
	NoTarget TargetKind = iota
	TargetJump
	TargetGoto
	TargetAccept
	TargetDrop
	TargetReturn
	TargetReject
	TargetDNAT
	TargetSNAT
	TargetRedirect
	TargetMasquerade
	TargetMark
	TargetAddSet
	TargetDelSet
	TargetMapMark
	TargetNetmap
)

// Target is what a rule does with a packet. Make one with the functions
// below; the zero Target does nothing.
type Target struct {
	Kind TargetKind
	// Exist lets an entry that is already in the set be added again.
	Exist bool
	// RandomFully makes a masquerade choose its port by chance.
	RandomFully bool
	// Name is the chain to go to, the set to change, or the ICMP error or
	// reset to reject with.
	Name string
	// Parts says what of the packet goes into the set.
	Parts string
	// To is the new destination or source; port zero keeps the port.
	To netip.AddrPort
	// Net is where a netmap sends flows to.
	Net netip.Prefix
	// Value and Mask change the mark to (mark &^ Mask) ^ Value.
	Value, Mask uint32
	// Timeout of an entry added to a set, in seconds.
	Timeout uint32
}

// Jump goes to a chain and comes back at its end.
func Jump(chain string) Target { return Target{Kind: TargetJump, Name: chain} }

// Goto goes to a chain and does not come back to this one.
func Goto(chain string) Target { return Target{Kind: TargetGoto, Name: chain} }

// Accept ends the traversal of the hook's table.
func Accept() Target { return Target{Kind: TargetAccept} }

// Drop discards the packet without a word.
func Drop() Target { return Target{Kind: TargetDrop} }

// Return goes back to the calling chain.
func Return() Target { return Target{Kind: TargetReturn} }

// Reject answers with an ICMP error or a TCP reset. The words differ by
// family: [PortUnreachable] gives the usual one.
func Reject(with string) Target { return Target{Kind: TargetReject, Name: with} }

// TCPReset is the word for [Reject] that refuses a TCP connection.
const TCPReset = "tcp-reset"

// PortUnreachable is the word for [Reject] that says that nobody listens.
func PortUnreachable(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "icmp6-port-unreachable"
	}
	return "icmp-port-unreachable"
}

// DNAT sends the flow to another destination; port zero keeps the port.
func DNAT(to netip.AddrPort) Target { return Target{Kind: TargetDNAT, To: to} }

// Netmap sends the flow to the address of a prefix that ends in the same bits as
// its destination does; the port stays. One rule gives each of any number of
// addresses another one.
func Netmap(to netip.Prefix) Target { return Target{Kind: TargetNetmap, Net: to.Masked()} }

// SNAT sends the flow from another source; port zero lets the kernel choose.
func SNAT(to netip.AddrPort) Target { return Target{Kind: TargetSNAT, To: to} }

// Redirect sends the flow to a port of this node.
func Redirect(port uint16) Target {
	return Target{Kind: TargetRedirect, To: netip.AddrPortFrom(netip.Addr{}, port)}
}

// Masquerade gives the flow the node's source address. Fully random ports
// need Linux 3.13 and iptables 1.6.2, see [Backend.RandomFully].
func Masquerade(randomFully bool) Target {
	return Target{Kind: TargetMasquerade, RandomFully: randomFully}
}

// SetXMark changes the mark to (mark &^ mask) ^ value.
func SetXMark(value, mask uint32) Target {
	return Target{Kind: TargetMark, Value: value, Mask: mask}
}

// OrMark sets bits of the mark and keeps the others.
func OrMark(bits uint32) Target { return SetXMark(bits, bits) }

// XorMark turns bits of the mark over.
func XorMark(bits uint32) Target { return SetXMark(bits, 0) }

// ClearMark clears bits of the mark and keeps the others.
func ClearMark(bits uint32) Target { return SetXMark(0, bits) }

// AddSet puts the packet's addresses into a set, or restarts their timeout
// if they are there already. Timeout zero is the set's own.
func AddSet(name, parts string, timeout uint32) Target {
	return Target{Kind: TargetAddSet, Name: name, Parts: parts, Exist: true, Timeout: timeout}
}

// DelSet takes the packet's addresses out of a set.
func DelSet(name, parts string) Target {
	return Target{Kind: TargetDelSet, Name: name, Parts: parts}
}

// MapMark gives the packet the mark that its entry in a set carries.
func MapMark(name, parts string) Target {
	return Target{Kind: TargetMapMark, Name: name, Parts: parts}
}
