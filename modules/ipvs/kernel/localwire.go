package kernel

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// local writes the message of an op for the device with an index.
func (m *message) local(o *LocalOp, index int, more uint16) (kind, flags uint16) {
	if o.Local.Bound {
		m.address(o.Local, index)
	} else {
		m.route(o.Local, index, o.Delete)
	}
	switch {
	case o.Local.Bound && o.Delete:
		return unix.RTM_DELADDR, 0
	case o.Local.Bound:
		return unix.RTM_NEWADDR, unix.NLM_F_CREATE | more
	case o.Delete:
		return unix.RTM_DELROUTE, 0
	}
	return unix.RTM_NEWROUTE, unix.NLM_F_CREATE | more
}

// address writes struct ifaddrmsg and its attributes. Nobody else can have
// the address on a device without a link, so there is no need to ask (DAD).
func (m *message) address(l Local, index int) {
	raw := l.Prefix.Addr().AsSlice()
	m.buf = append(m.buf, byte(family(l.Prefix.Addr())), byte(l.Prefix.Bits()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE)
	m.buf = binary.NativeEndian.AppendUint32(m.buf, uint32(index))
	m.bytes(unix.IFA_LOCAL, raw)
	m.bytes(unix.IFA_ADDRESS, raw)
}

// route writes struct rtmsg and its attributes. The kernel deletes only what
// agrees with all that is said.
func (m *message) route(l Local, index int, deletes bool) {
	scope := byte(unix.RT_SCOPE_UNIVERSE)
	if l.Prefix.Addr().Is4() {
		scope = unix.RT_SCOPE_HOST
	}
	m.buf = append(m.buf, byte(family(l.Prefix.Addr())), byte(l.Prefix.Bits()), 0, 0,
		unix.RT_TABLE_LOCAL, RouteProtocol, scope, unix.RTN_LOCAL, 0, 0, 0, 0)
	m.bytes(unix.RTA_DST, l.Prefix.Addr().AsSlice())
	m.uint32(unix.RTA_OIF, uint32(index))
	if l.Source.IsValid() && !deletes {
		m.bytes(unix.RTA_PREFSRC, l.Source.AsSlice())
	}
}

func rtFamily(f dataplane.Family) int {
	if f == dataplane.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	length, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), length), ok
}
