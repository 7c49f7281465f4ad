package iptables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Flows find their frontend through buckets: KUBE-SERVICES knows the last byte
// of the destination, KUBE-NODEPORTS ranges of 128 ports. A bucket that is
// empty does not exist, so a flow passes at most 256 rules and then those of
// one bucket, whatever the number of Services; see DESIGN.md for what that
// costs.

const (
	addrBuckets   = 256
	portsInBucket = 128
)

// addrBucket is the chain below a root of the frontends whose addresses end
// like this one.
func addrBucket(root chainID, a netip.Addr) chainID {
	bytes := a.AsSlice()
	return addrBucketChain(root, bytes[len(bytes)-1])
}

func addrBucketChain(root chainID, last byte) chainID {
	return chainID{root.table, fmt.Sprintf("%s-%02X", root.name, last)}
}

// natServices and filterFirewall have such buckets, natNodePorts has those by
// port.
func natServices() chainID    { return chainID{netfilter.NAT, chainServices} }
func natNodePorts() chainID   { return chainID{netfilter.NAT, chainNodePorts} }
func filterFirewall() chainID { return chainID{netfilter.Filter, chainFirewall} }

// addrBucketMatch matches the destinations of a bucket.
func addrBucketMatch(f dataplane.Family, last byte) netfilter.AddrMatch {
	return netfilter.MatchMask(lowByte(f, last), lowByte(f, 0xff))
}

func lowByte(f dataplane.Family, b byte) netip.Addr {
	if f == dataplane.IPv6 {
		return netip.AddrFrom16([16]byte{15: b})
	}
	return netip.AddrFrom4([4]byte{3: b})
}

// portBucket is a range of ports of one protocol.
type portBucket struct {
	protocol dataplane.Protocol
	number   uint16
}

func portBucketOf(p dataplane.Protocol, port uint16) portBucket {
	return portBucket{p, port / portsInBucket}
}

// chain is the bucket's chain.
func (b portBucket) chain() chainID {
	return chainID{netfilter.NAT, fmt.Sprintf("%s-%s-%03X", chainNodePorts, b.protocol, b.number)}
}

// jump is the rule that leads to it.
func (b portBucket) jump() netfilter.Rule {
	first := b.number * portsInBucket
	return netfilter.Rule{
		Protocol: netfilter.Is(b.protocol),
		DestPort: netfilter.PortMatch{First: first, Last: first + portsInBucket - 1},
		Target:   netfilter.Jump(b.chain().name),
	}
}

// portBuckets yields all buckets there can be, in order.
func portBuckets(yield func(portBucket) bool) {
	for _, p := range protocols() {
		for n := range uint16(65536 / portsInBucket) {
			if !yield(portBucket{p, n}) {
				return
			}
		}
	}
}

// parent is the chain that leads to a bucket, if the chain is one.
func parent(id chainID) (chainID, bool) {
	for _, root := range []chainID{natServices(), natNodePorts(), filterFirewall()} {
		if id.table == root.table && strings.HasPrefix(id.name, root.name+"-") {
			return root, true
		}
	}
	return chainID{}, false
}

// dispatch leads the flows of a frontend to a target of the nat table.
func (w *writer) dispatch(f *dataplane.Frontend, target netfilter.Target) {
	r := w.match(f)
	r.Target = target
	r.Comment = w.comment(f)
	if f.Kind == dataplane.NodePort {
		w.out.addRule(portBucketOf(w.sp.Name.Protocol, f.Port).chain(), f.Key(w.sp.Name.Protocol), r)
		return
	}
	if target.Kind == netfilter.TargetAccept {
		r.Comment = netfilter.Comment(r.Comment + " has no endpoints")
	}
	w.out.addRule(addrBucket(natServices(), f.Addr), f.Key(w.sp.Name.Protocol), r)
}

// match matches the flows that mean a frontend; whether the address takes
// NodePorts was asked before.
func (w *writer) match(f *dataplane.Frontend) netfilter.Rule {
	r := netfilter.Rule{Protocol: netfilter.Is(w.sp.Name.Protocol), DestPort: netfilter.Port(f.Port)}
	if f.Kind != dataplane.NodePort {
		r.Destination = netfilter.MatchAddr(f.Addr)
	}
	return r
}

// comment names the frontend in kube-proxy's words.
func (w *writer) comment(f *dataplane.Frontend) string {
	text := w.sp.Name.Service().String()
	if w.sp.Name.Port != "" {
		text += ":" + w.sp.Name.Port
	}
	switch f.Kind {
	case dataplane.ClusterIP:
		text += " cluster IP"
	case dataplane.LoadBalancerIP:
		text += " loadbalancer IP"
	case dataplane.ExternalIP:
		text += " external IP"
	}
	return netfilter.Comment(text)
}

// addrEntry and portEntry are entries of hash:ip and hash:ip,port sets.
func addrEntry(a netip.Addr) netfilter.SetEntry {
	return netfilter.SetEntry{Net: netip.PrefixFrom(a, a.BitLen())}
}

func portEntry(k dataplane.FrontendKey) netfilter.SetEntry {
	e := addrEntry(k.Addr)
	e.Protocol, e.Port = k.Protocol, k.Port
	return e
}
