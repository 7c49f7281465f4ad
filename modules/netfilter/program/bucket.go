package program

import (
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Flows find their frontend through buckets: a chain asks for the last byte of
// the destination, or for a range of ports, and leads to the chain of the
// frontends that have it. A bucket that is empty does not exist, so a flow
// passes at most 256 rules (512 for ports of one protocol) and then those of one
// bucket, whatever the number of Services.

// Bucket is a chain that another one leads to while somebody has a rule in it.
type Bucket struct {
	Chain string
	Jump  netfilter.Rule
}

const (
	addrBuckets   = 256
	portsInBucket = 128
)

// AddrBucket is the name of the bucket below a chain for an address.
func AddrBucket(root string, a netip.Addr) string {
	bytes := a.AsSlice()
	return addrBucket(root, bytes[len(bytes)-1])
}

func addrBucket(root string, last byte) string { return fmt.Sprintf("%s-%02X", root, last) }

// AddrBuckets are all buckets for addresses below a chain.
func AddrBuckets(root string, f dataplane.Family) []Bucket {
	all := make([]Bucket, addrBuckets)
	for i := range all {
		name := addrBucket(root, byte(i))
		all[i] = Bucket{name, netfilter.Rule{
			Destination: netfilter.MatchMask(lowByte(f, byte(i)), lowByte(f, 0xff)),
			Target:      netfilter.Jump(name),
		}}
	}
	return all
}

func lowByte(f dataplane.Family, b byte) netip.Addr {
	if f == dataplane.IPv6 {
		return netip.AddrFrom16([16]byte{15: b})
	}
	return netip.AddrFrom4([4]byte{3: b})
}

// PortBucket is the name of the bucket below a chain for a port.
func PortBucket(root string, p dataplane.Protocol, port uint16) string {
	return fmt.Sprintf("%s-%s-%03X", root, p, port/portsInBucket)
}

// PortBuckets are all buckets for ports below a chain, protocol by protocol.
func PortBuckets(root string) []Bucket {
	var all []Bucket
	for _, p := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP} {
		for n := range uint16(65536 / portsInBucket) {
			first := n * portsInBucket
			name := PortBucket(root, p, first)
			all = append(all, Bucket{name, netfilter.Rule{
				Protocol: netfilter.Is(p),
				DestPort: netfilter.PortMatch{First: first, Last: first + portsInBucket - 1},
				Target:   netfilter.Jump(name),
			}})
		}
	}
	return all
}
