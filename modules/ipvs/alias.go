package ipvs

import (
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// An alias is an address behind which a virtual server stands that is not
// reached by its own one: NodePorts, load balancers' addresses and externalIPs.
// One rule, NETMAP, gives every external address its alias, however many there
// are, because an alias ends in the same bits. The first range is for flows
// from inside the cluster and everybody where it makes no difference, the
// second for those from outside where it does.
//
// Only aliases that are in use are local to the node, so the ranges may be in
// use elsewhere; 240.0.0.0/4 and fc00::/8 are assigned to nobody.
func aliasRange(f dataplane.Family, outside bool) netip.Prefix {
	switch {
	case f == dataplane.IPv4 && !outside:
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{240}), 5)
	case f == dataplane.IPv4:
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{248}), 5)
	case !outside:
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfc, 0x6b}), 16)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfc, 0x6c}), 16)
}

// aliasOf is the alias that NETMAP gives to an address.
func aliasOf(a netip.Addr, outside bool) netip.Addr {
	to := aliasRange(dataplane.FamilyOf(a), outside)
	bytes, base := a.AsSlice(), to.Addr().AsSlice()
	for i, left := 0, to.Bits(); left > 0; i, left = i+1, left-8 {
		keep := byte(0xff)
		if left < 8 {
			keep = 0xff << (8 - left)
		}
		bytes[i] = base[i] | bytes[i]&^keep
	}
	alias, _ := netip.AddrFromSlice(bytes) // as long as before
	return alias
}

// nodePortAlias is the alias of all addresses at which NodePorts answer.
func nodePortAlias(f dataplane.Family, outside bool) netip.Addr {
	return aliasRange(f, outside).Addr().Next()
}

// checkAlias refuses the one address of the ranges that cannot be local.
func checkAlias(a netip.Addr) error {
	if a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("its alias would be %s, the broadcast address", a)
	}
	return nil
}

// isAlias tells whether an address is in one of the ranges.
func isAlias(a netip.Addr) bool {
	f := dataplane.FamilyOf(a)
	return aliasRange(f, false).Contains(a) || aliasRange(f, true).Contains(a)
}
