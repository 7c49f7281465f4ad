package netfilter

import (
	"net/netip"
	"strconv"

	"github.com/portway/portway/modules/dataplane"
)

// String is the rule as iptables-save prints it after the name of its chain,
// and as iptables-restore reads it.
func (r Rule) String() string {
	return string(r.Append(nil))
}

// Append adds what String returns to b.
func (r *Rule) Append(b []byte) []byte {
	if r.Text != "" {
		return append(b, r.Text...)
	}
	start := len(b)
	b = appendAddr(b, " -s ", r.Source)
	b = appendAddr(b, " -d ", r.Destination)
	b = appendIface(b, " -i ", r.In)
	b = appendIface(b, " -o ", r.Out)
	b = appendProtocol(b, r.Protocol)
	b = r.appendPorts(b)
	b = appendComment(b, r.Comment)
	b = r.appendAddrTypes(b)
	b = r.Conntrack.append(b)
	b = r.Mark.append(b)
	for i := range r.Sets {
		b = r.Sets[i].append(b)
	}
	if r.Probability != 0 {
		b = append(b, " -m statistic --mode random --probability "...)
		b = appendProbability(b, r.Probability)
	}
	b = r.Target.append(b)
	if len(b) > start { // every part begins with a blank
		b = append(b[:start], b[start+1:]...)
	}
	return b
}

func appendNot(b []byte, not bool) []byte {
	if not {
		return append(b, " !"...)
	}
	return b
}

func appendAddr(b []byte, option string, m AddrMatch) []byte {
	if !m.Addr.IsValid() {
		return b
	}
	b = appendNot(b, m.Not)
	b = append(b, option...)
	b = appendIP(b, m.Addr)
	b = append(b, '/')
	if bits, ok := leadingOnes(m.Mask); ok {
		return strconv.AppendInt(b, int64(bits), 10)
	}
	return appendIP(b, m.Mask)
}

// appendIP writes an address as the C library does, which differs from
// netip in one case: ::0.1.0.2, all zero but the last 32 bits.
func appendIP(b []byte, a netip.Addr) []byte {
	if a.Is4() || !a.Is6() {
		return a.AppendTo(b)
	}
	x := a.As16()
	for _, v := range x[:12] {
		if v != 0 {
			return a.AppendTo(b)
		}
	}
	if x[12] == 0 && x[13] == 0 {
		return a.AppendTo(b)
	}
	return netip.AddrFrom4([4]byte(x[12:])).AppendTo(append(b, "::"...))
}

// leadingOnes counts the ones of a mask, if they are all in front.
func leadingOnes(mask netip.Addr) (int, bool) {
	n, done := 0, false
	x := mask.As16()
	ones := x[:]
	if mask.Is4() {
		ones = ones[12:]
	}
	for _, v := range ones {
		for bit := byte(0x80); bit != 0; bit >>= 1 {
			switch {
			case v&bit == 0:
				done = true
			case done:
				return 0, false
			default:
				n++
			}
		}
	}
	return n, true
}

func appendIface(b []byte, option string, m IfaceMatch) []byte {
	if m.Name == "" {
		return b
	}
	b = appendNot(b, m.Not)
	b = append(b, option...)
	return append(b, m.Name...)
}

// protocolNames are the names that iptables prints without /etc/protocols.
func protocolName(p dataplane.Protocol) string {
	switch p {
	case dataplane.ICMP:
		return "icmp"
	case dataplane.TCP:
		return "tcp"
	case dataplane.UDP:
		return "udp"
	case dataplane.ICMPv6:
		return "ipv6-icmp"
	case dataplane.SCTP:
		return "sctp"
	}
	return ""
}

func appendProtocol(b []byte, m ProtocolMatch) []byte {
	if m.Number == 0 {
		return b
	}
	b = appendNot(b, m.Not)
	b = append(b, " -p "...)
	if name := protocolName(m.Number); name != "" {
		return append(b, name...)
	}
	return strconv.AppendUint(b, uint64(m.Number), 10)
}

func (r *Rule) appendPorts(b []byte) []byte {
	if r.SourcePort.Last == 0 && r.DestPort.Last == 0 {
		return b
	}
	b = append(b, " -m "...)
	b = append(b, protocolName(r.Protocol.Number)...)
	b = r.SourcePort.append(b, " --sport ")
	return r.DestPort.append(b, " --dport ")
}

func (m PortMatch) append(b []byte, option string) []byte {
	if m.Last == 0 {
		return b
	}
	b = appendNot(b, m.Not)
	b = append(b, option...)
	b = strconv.AppendUint(b, uint64(m.First), 10)
	if m.First == m.Last {
		return b
	}
	b = append(b, ':')
	return strconv.AppendUint(b, uint64(m.Last), 10)
}

func (r *Rule) appendAddrTypes(b []byte) []byte {
	if r.SourceType == AnyType && r.DestType == AnyType {
		return b
	}
	b = append(b, " -m addrtype"...)
	b = r.SourceType.append(b, " --src-type LOCAL")
	b = r.DestType.append(b, " --dst-type LOCAL")
	if r.LimitIfaceIn {
		b = append(b, " --limit-iface-in"...)
	}
	return b
}

func (m AddrTypeMatch) append(b []byte, option string) []byte {
	if m == AnyType {
		return b
	}
	return append(appendNot(b, m == NotLocal), option...)
}

// stateNames are in the order of the bits of StateSet, which is the order in
// which iptables prints them.
func stateNames() [7]string {
	return [7]string{"INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"}
}

func (m ConntrackMatch) append(b []byte) []byte {
	if m == (ConntrackMatch{}) {
		return b
	}
	b = append(b, " -m conntrack"...)
	if m.States != 0 {
		b = appendNot(b, m.NotStates)
		b = append(b, " --ctstate "...)
		b = m.States.append(b)
	}
	if m.OrigDst.IsValid() {
		b = append(b, " --ctorigdst "...)
		b = appendIP(b, m.OrigDst.Addr())
		if !m.OrigDst.IsSingleIP() {
			b = strconv.AppendInt(append(b, '/'), int64(m.OrigDst.Bits()), 10)
		}
	}
	return m.OrigDstPort.append(b, " --ctorigdstport ")
}

func (s StateSet) append(b []byte) []byte {
	comma := false
	for i, name := range stateNames() {
		if s&(1<<i) == 0 {
			continue
		}
		if comma {
			b = append(b, ',')
		}
		b = append(b, name...)
		comma = true
	}
	return b
}

func (m MarkMatch) append(b []byte) []byte {
	if m.Mask == 0 {
		return b
	}
	b = append(b, " -m mark"...)
	b = appendNot(b, m.Not)
	b = append(b, " --mark "...)
	b = appendHex(b, m.Value)
	if m.Mask == 0xffffffff {
		return b
	}
	return appendHex(append(b, '/'), m.Mask)
}

func appendHex(b []byte, v uint32) []byte {
	return strconv.AppendUint(append(b, "0x"...), uint64(v), 16)
}

func (m SetMatch) append(b []byte) []byte {
	if m.Name == "" {
		return b
	}
	b = append(b, " -m set"...)
	b = appendNot(b, m.Not)
	b = append(b, " --match-set "...)
	b = append(b, m.Name...)
	b = append(b, ' ')
	return append(b, m.Parts...)
}

// appendProbability writes p as iptables does, %.11f: enough digits that the
// kernel's integer comes back unchanged.
func appendProbability(b []byte, p uint32) []byte {
	return strconv.AppendFloat(b, float64(p)/certain, 'f', 11, 64)
}
