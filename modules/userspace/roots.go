package userspace

import (
	"cmp"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

func compareEntries(a, b netfilter.SetEntry) int {
	return cmp.Or(a.Net.Addr().Compare(b.Net.Addr()), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// roots adds the chains that exist always.
func (b *builder) roots() {
	for _, root := range []string{chainPortals, chainPortalsHost} {
		nodePort := chainNodePort
		if root == chainPortalsHost {
			nodePort = chainNodePortHost
		}
		toNodePorts := netfilter.Rule{Sets: setNodeIP.matches(b.family, "dst"), Target: netfilter.Jump(nodePort)}
		if root == chainPortalsHost && b.node.Mark != 0 {
			// What the relay sends is on its way to an endpoint. That may be a
			// Service's address, its own even, and then it would never end.
			b.add(netfilter.NAT, root, netfilter.Rule{Mark: netfilter.MatchMark(b.node.Mark, b.node.Mark), Target: netfilter.Return()})
		}
		b.add(netfilter.NAT, root, b.buckets(netfilter.NAT, root)...)
		b.add(netfilter.NAT, root, toNodePorts)
		b.add(netfilter.Filter, root, netfilter.Rule{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT}, Target: netfilter.Return(),
		})
		b.add(netfilter.Filter, root, b.buckets(netfilter.Filter, root)...)
		b.add(netfilter.Filter, root, netfilter.Rule{Sets: setFrontend.matches(b.family, "dst,dst"), Target: netfilter.Jump(chainReject)}, toNodePorts)
		b.add(netfilter.Filter, root, b.services()...)
		b.exists(netfilter.NAT, nodePort)
		for _, p := range protocols() {
			b.add(netfilter.Filter, nodePort, netfilter.Rule{
				Protocol: netfilter.Is(p), Sets: setNodePort.of(p).matches(b.family, "dst"), Target: netfilter.Jump(chainReject),
			})
		}
	}
	b.add(netfilter.Filter, chainReject,
		netfilter.Rule{Protocol: netfilter.Is(dataplane.TCP), Target: netfilter.Reject(netfilter.TCPReset)},
		netfilter.Rule{Target: netfilter.Reject(netfilter.PortUnreachable(b.family))})
	b.guard()
}

// exists makes a chain that may have no rule.
func (b *builder) exists(t netfilter.Table, chain string) {
	if id := (chainID{t, chain}); b.wish.chains[id] == nil {
		b.wish.chains[id] = []netfilter.Rule{}
	}
}

// buckets are the jumps to the buckets that are in use.
func (b *builder) buckets(t netfilter.Table, root string) []netfilter.Rule {
	var rules []netfilter.Rule
	for i := range 256 {
		name := bucketName(root, byte(i))
		if _, used := b.wish.chains[chainID{t, name}]; used {
			rules = append(rules, netfilter.Rule{
				Destination: netfilter.MatchMask(lowByte(b.family, byte(i)), lowByte(b.family, 0xff)),
				Target:      netfilter.Jump(name),
			})
		}
	}
	return rules
}

func lowByte(f dataplane.Family, b byte) netip.Addr {
	if f == dataplane.IPv6 {
		return netip.AddrFrom16([16]byte{15: b})
	}
	return netip.AddrFrom4([4]byte{3: b})
}

// services refuse what is addressed to a ClusterIP but to none of its ports,
// and drop the addresses that no Service has. Addresses of this node are spared:
// NodeLocal DNSCache, for one, binds a ClusterIP.
func (b *builder) services() []netfilter.Rule {
	rules := []netfilter.Rule{
		{DestType: netfilter.NotLocal, Sets: setClusterIP.matches(b.family, "dst"), Target: netfilter.Jump(chainReject)},
		{Sets: setIgnored.matches(b.family, "dst"), Target: netfilter.Return()},
	}
	for _, p := range b.node.ServiceCIDRs {
		if b.node.DropUnallocated && dataplane.FamilyOf(p.Addr()) == b.family {
			rules = append(rules, netfilter.Rule{
				Destination: netfilter.MatchPrefix(p), DestType: netfilter.NotLocal,
				Comment: "kubernetes unallocated service addresses", Target: netfilter.Drop(),
			})
		}
	}
	return rules
}

// guard opens the listeners to what was redirected to them, and to nothing
// else, and the healthCheckNodePorts.
func (b *builder) guard() {
	b.add(netfilter.Filter, chainGuard, netfilter.Rule{
		Protocol: netfilter.Is(dataplane.TCP), Comment: "kubernetes health check service ports",
		Sets: setHealth.matches(b.family, "dst"), Target: netfilter.Accept(),
	})
	at, ok := listenAddr(b.node, b.family)
	if !ok {
		return
	}
	for _, p := range relayed() {
		to := netfilter.Rule{
			Destination: netfilter.MatchAddr(at), Protocol: netfilter.Is(p),
			Sets: setListener.of(p).matches(b.family, "dst"),
		}
		redirected, stray := to, to
		redirected.Conntrack.States, redirected.Target = netfilter.StateDNAT, netfilter.Accept()
		stray.Conntrack.States, stray.Target = netfilter.StateNew, netfilter.Jump(chainReject)
		b.add(netfilter.Filter, chainGuard, redirected, stray)
	}
}

// listenAddr is where the relay listens: the node's address in the Kubernetes
// API, or some other one. REDIRECT would choose the address of the incoming
// device, which need not have one, and answers to datagrams would leave with
// another.
func listenAddr(n *dataplane.Node, f dataplane.Family) (netip.Addr, bool) {
	if a := n.PrimaryIP(f); a.IsValid() && !a.IsLoopback() && n.Holds(a) {
		return a, true
	}
	for _, a := range n.Addresses {
		if dataplane.FamilyOf(a) == f && a.IsGlobalUnicast() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// hook is a chain of the kernel with the jumps that must stand first in it.
type hook struct {
	id    chainID
	jumps []netfilter.Rule
}

// hooks are the kernel's chains that lead to ours.
func hooks() []hook {
	jump := func(comment, chain string, states netfilter.StateSet) netfilter.Rule {
		return netfilter.Rule{Comment: comment, Conntrack: netfilter.ConntrackMatch{States: states}, Target: netfilter.Jump(chain)}
	}
	const redirect, refuse = "kubernetes service portals", "kubernetes service portals that refuse"
	guard := jump("kubernetes listeners of service portals", chainGuard, 0)
	return []hook{
		{chainID{netfilter.NAT, "PREROUTING"}, []netfilter.Rule{jump(redirect, chainPortals, 0)}},
		{chainID{netfilter.NAT, "OUTPUT"}, []netfilter.Rule{jump(redirect, chainPortalsHost, 0)}},
		{chainID{netfilter.Filter, "INPUT"}, []netfilter.Rule{guard, jump(refuse, chainPortals, netfilter.StateNew)}},
		{chainID{netfilter.Filter, "FORWARD"}, []netfilter.Rule{jump(refuse, chainPortals, netfilter.StateNew)}},
		{chainID{netfilter.Filter, "OUTPUT"}, []netfilter.Rule{jump(refuse, chainPortalsHost, netfilter.StateNew)}},
	}
}
