package kernel

import (
	"cmp"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// Key names a virtual server.
type Key struct {
	Protocol dataplane.Protocol // TCP, UDP or SCTP
	Addr     netip.Addr
	Port     uint16
}

// Family is the address family of the virtual server. Its real servers are of
// the same: IPVS maps between families only by tunnels, which the mode has no
// use for.
func (k Key) Family() dataplane.Family { return dataplane.FamilyOf(k.Addr) }

// Compare orders by address, port and protocol.
func (k Key) Compare(o Key) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol))
}

// String returns protocol and address as ipvsadm shows them, such as
// "TCP 10.96.0.1:443" or "UDP [fd00::a]:53".
func (k Key) String() string {
	return k.Protocol.String() + " " + netip.AddrPortFrom(k.Addr, k.Port).String()
}
