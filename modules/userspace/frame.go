package userspace

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// frame is what depends on the node and not on any Service.
type frame struct {
	program.Frame
	family dataplane.Family
	node   *dataplane.Node
}

func newFrame(n *dataplane.Node, f dataplane.Family) program.Frame {
	fr := &frame{family: f, node: n, Frame: program.Frame{
		Head: make(map[program.ChainID][]netfilter.Rule), Tail: make(map[program.ChainID][]netfilter.Rule),
		Late: make(map[program.ChainID][]netfilter.Rule),
	}}
	fr.portals(chainPortals, chainNodePort)
	fr.portals(chainPortalsHost, chainNodePortHost)
	if n.Mark != 0 {
		// What the relay sends is on its way to an endpoint. That may be a
		// Service's address, its own even, and then it would never end.
		fr.Head[nat(chainPortalsHost)] = []netfilter.Rule{{Mark: netfilter.MatchMark(n.Mark, n.Mark), Target: netfilter.Return()}}
	}
	fr.Roots = append(fr.Roots, filter(chainReject), filter(chainGuard))
	fr.Head[filter(chainReject)] = []netfilter.Rule{
		{Protocol: netfilter.Is(dataplane.TCP), Target: netfilter.Reject(netfilter.TCPReset)},
		{Target: netfilter.Reject(netfilter.PortUnreachable(f))},
	}
	fr.Head[filter(chainGuard)] = fr.guard()
	return fr.Frame
}

// portals adds a chain of frontends with an address of their own and, below it,
// that of NodePorts, in both tables.
func (f *frame) portals(root, nodePort string) {
	f.Roots = append(f.Roots, nat(root), filter(root), nat(nodePort), filter(nodePort))
	toNodePorts := netfilter.Rule{Sets: setNodeIP.matches(f.family, "dst"), Target: netfilter.Jump(nodePort)}
	f.Tail[nat(root)] = []netfilter.Rule{toNodePorts}
	f.Head[filter(root)] = []netfilter.Rule{{
		Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT}, Target: netfilter.Return(),
	}}
	// A ClusterIP that nat should have redirected is rejected where it is nobody's,
	// and not where it is of this node: IPVS takes it there, before this mode or
	// after it.
	f.Tail[filter(root)] = []netfilter.Rule{
		{Sets: setReject.matches(f.family, "dst,dst"), Target: netfilter.Jump(chainReject)},
		{DestType: netfilter.NotLocal, Sets: setFrontend.matches(f.family, "dst,dst"), Target: netfilter.Jump(chainReject)},
		toNodePorts,
	}
	f.Late[filter(root)] = f.services()
	for _, p := range protocols() {
		f.Tail[filter(nodePort)] = append(f.Tail[filter(nodePort)], netfilter.Rule{
			Protocol: netfilter.Is(p), Sets: setNodePort.of(p).matches(f.family, "dst"), Target: netfilter.Jump(chainReject),
		})
	}
}

// services refuse what is addressed to a ClusterIP but to none of its ports,
// and drop the addresses that no Service has. Addresses of this node are spared:
// NodeLocal DNSCache, for one, binds a ClusterIP.
func (f *frame) services() []netfilter.Rule {
	rules := []netfilter.Rule{
		{DestType: netfilter.NotLocal, Sets: setClusterIP.matches(f.family, "dst"), Target: netfilter.Jump(chainReject)},
		{Sets: setIgnored.matches(f.family, "dst"), Target: netfilter.Return()},
	}
	if f.node.DropUnallocated {
		rules = append(rules, netfilter.DropUnallocated(netfilter.OfFamily(f.node.ServiceCIDRs, f.family))...)
	}
	return rules
}

// guard opens the listeners to what was redirected to them, and to nothing
// else, and the healthCheckNodePorts.
func (f *frame) guard() []netfilter.Rule {
	rules := []netfilter.Rule{{
		Protocol: netfilter.Is(dataplane.TCP), Comment: "kubernetes health check service ports",
		Sets: setHealth.matches(f.family, "dst"), Target: netfilter.Accept(),
	}}
	at, ok := listenAddr(f.node, f.family)
	if !ok {
		return rules
	}
	for _, p := range relayed() {
		to := netfilter.Rule{
			Destination: netfilter.MatchAddr(at), Protocol: netfilter.Is(p),
			Sets: setListener.of(p).matches(f.family, "dst"),
		}
		redirected, stray := to, to
		redirected.Conntrack.States, redirected.Target = netfilter.StateDNAT, netfilter.Accept()
		stray.Conntrack.States, stray.Target = netfilter.StateNew, netfilter.Jump(chainReject)
		rules = append(rules, redirected, stray)
	}
	return rules
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
