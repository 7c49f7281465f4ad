package iptables

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// frame is what depends on the node and not on any Service: the chains with
// fixed names, and the jumps that lead to them.
type frame struct {
	family      dataplane.Family
	local       locality
	mark        uint32
	randomFully bool
	dropInvalid bool
	unallocated []netip.Prefix // ServiceCIDRs whose unknown addresses are dropped
}

func newFrame(n *dataplane.Node, f dataplane.Family, randomFully bool) frame {
	fr := frame{family: f, local: newLocality(n, f), mark: n.Mark, randomFully: randomFully, dropInvalid: n.DropInvalid}
	if n.DropUnallocated {
		fr.unallocated = netfilter.OfFamily(n.ServiceCIDRs, f)
	}
	return fr
}

// chains are those that the frame is made of. What refuses unknown ports and
// addresses comes late.
func (f frame) chains() program.Frame {
	fr := program.Frame{
		Roots: roots(),
		Head:  make(map[program.ChainID][]netfilter.Rule), Tail: make(map[program.ChainID][]netfilter.Rule),
		Late: map[program.ChainID][]netfilter.Rule{{Table: netfilter.Filter, Name: chainServices}: f.services()},
	}
	for _, id := range fr.Roots {
		fr.Head[id], fr.Tail[id] = f.head(id), f.tail(id)
	}
	return fr
}

// roots are the chains that exist always.
func roots() []program.ChainID {
	return []program.ChainID{
		{Table: netfilter.NAT, Name: chainMarkMasq},
		{Table: netfilter.NAT, Name: chainPostrouting},
		{Table: netfilter.NAT, Name: chainNodePorts},
		{Table: netfilter.NAT, Name: chainServices},
		{Table: netfilter.Filter, Name: chainReject},
		{Table: netfilter.Filter, Name: chainForward},
		{Table: netfilter.Filter, Name: chainFirewall},
		{Table: netfilter.Filter, Name: chainExternal},
		{Table: netfilter.Filter, Name: chainNodePorts},
		{Table: netfilter.Filter, Name: chainServices},
	}
}

// head is what stands in a root before the rules of Services.
func (f frame) head(id program.ChainID) []netfilter.Rule {
	switch id {
	case program.ChainID{Table: netfilter.NAT, Name: chainMarkMasq}:
		return []netfilter.Rule{{Target: netfilter.OrMark(f.mark)}}
	case natServices():
		return f.masqueraded()
	case program.ChainID{Table: netfilter.NAT, Name: chainPostrouting}:
		return f.postrouting()
	case program.ChainID{Table: netfilter.Filter, Name: chainReject}:
		return []netfilter.Rule{
			{Protocol: netfilter.Is(dataplane.TCP), Target: netfilter.Reject(netfilter.TCPReset)},
			{Target: netfilter.Reject(netfilter.PortUnreachable(f.family))},
		}
	case program.ChainID{Table: netfilter.Filter, Name: chainForward}:
		return f.forward()
	case program.ChainID{Table: netfilter.Filter, Name: chainFirewall}:
		return []netfilter.Rule{
			translated(),
			{Sets: f.in(setFirewall, "dst,dst", true), Target: netfilter.Return()},
		}
	case program.ChainID{Table: netfilter.Filter, Name: chainExternal}:
		return []netfilter.Rule{
			translated(),
			{Sets: f.in(setReject, "dst,dst", false), Target: netfilter.Jump(chainReject)},
			{Sets: f.in(setDrop, "dst,dst", false), Target: netfilter.Drop()},
		}
	case program.ChainID{Table: netfilter.Filter, Name: chainNodePorts}:
		return f.nodePorts()
	}
	return nil
}

// tail is what stands after them.
func (f frame) tail(id program.ChainID) []netfilter.Rule {
	switch id {
	case natServices():
		return []netfilter.Rule{{
			Comment: "kubernetes service nodeports; NOTE: this must be the last rule in this chain",
			Sets:    f.in(setNodeIP, "dst", false),
			Target:  netfilter.Jump(chainNodePorts),
		}}
	case program.ChainID{Table: netfilter.Filter, Name: chainNodePorts}:
		return f.refusedNodePorts()
	}
	return nil
}

// in matches a shared set.
func (f frame) in(s set, parts string, not bool) [2]netfilter.SetMatch {
	return [2]netfilter.SetMatch{{Name: s.name(f.family), Parts: parts, Not: not}}
}

// masqueraded marks those who must be masqueraded at most ClusterIPs; see
// [exceptPods].
func (f frame) masqueraded() []netfilter.Rule {
	if !f.local.TellsPods() {
		return nil
	}
	mark := f.local.NotFromPods()
	mark.Comment = "Kubernetes service cluster ip + port for masquerade purpose"
	mark.Sets = f.in(setMasquerade, "dst,dst", false)
	mark.Target = netfilter.Jump(chainMarkMasq)
	return []netfilter.Rule{mark}
}

// translated lets pass what the nat table sent to an endpoint. That may be a
// frontend's address too, of another Service, which then is not meant.
func translated() netfilter.Rule {
	return netfilter.Rule{
		Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT},
		Target:    netfilter.Return(),
	}
}

// postrouting masquerades flows with the mark, and those of an endpoint to
// itself (kubernetes#20475), which can be known only after the endpoint was
// chosen. The mark is cleared, because another device may take the packet
// through here again, and must not be taken for ours then.
func (f frame) postrouting() []netfilter.Rule {
	return []netfilter.Rule{
		{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT},
			Sets:      f.in(setLoopBack, "dst,dst,src", false),
			Target:    netfilter.Jump(chainMarkMasq),
		},
		{Mark: netfilter.MarkMatch{Value: f.mark, Mask: f.mark, Not: true}, Target: netfilter.Return()},
		{Target: netfilter.XorMark(f.mark)},
		{
			Comment: "kubernetes service traffic requiring SNAT",
			Target:  netfilter.Masquerade(f.randomFully),
		},
	}
}

// forward accepts what we masquerade, and the replies, where the policy of
// FORWARD is DROP.
func (f frame) forward() []netfilter.Rule {
	var rules []netfilter.Rule
	if f.dropInvalid {
		rules = append(rules, netfilter.Rule{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateInvalid},
			Target:    netfilter.Drop(),
		})
	}
	return append(
		rules,
		netfilter.Rule{
			Comment: "kubernetes forwarding rules",
			Mark:    netfilter.MatchMark(f.mark, f.mark),
			Target:  netfilter.Accept(),
		},
		netfilter.Rule{
			Comment:   "kubernetes forwarding conntrack rule",
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateRelated | netfilter.StateEstablished},
			Target:    netfilter.Accept(),
		},
		netfilter.Rule{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT},
			Sets:      f.in(setLoopBack, "dst,dst,src", false),
			Target:    netfilter.Accept(),
		},
	)
}

// nodePorts opens the healthCheckNodePorts, and lets go what is no new flow to
// a NodePort.
func (f frame) nodePorts() []netfilter.Rule {
	return []netfilter.Rule{
		{
			Protocol: netfilter.Is(dataplane.TCP),
			Comment:  "kubernetes health check service ports",
			Sets:     f.in(setHealth, "dst", false),
			Target:   netfilter.Accept(),
		},
		{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateNew, NotStates: true},
			Target:    netfilter.Return(),
		},
		translated(),
		{Sets: f.in(setNodeIP, "dst", true), Target: netfilter.Return()},
	}
}

// refusedNodePorts refuses by set. It comes after NodePorts with source ranges.
func (f frame) refusedNodePorts() []netfilter.Rule {
	var rules []netfilter.Rule
	for _, p := range protocols() {
		rules = append(
			rules,
			netfilter.Rule{
				Protocol: netfilter.Is(p), Sets: f.in(setNodePortReject.of(p), "dst", false),
				Target: netfilter.Jump(chainReject),
			},
			netfilter.Rule{
				Protocol: netfilter.Is(p), Sets: f.in(setNodePortDrop.of(p), "dst", false),
				Target: netfilter.Drop(),
			},
		)
	}
	return rules
}

// services refuses what is addressed to a ClusterIP but to none of its ports,
// ICMP included, and drops the addresses that no Service has. Addresses of
// this node are spared: NodeLocal DNSCache, for one, binds a ClusterIP.
func (f frame) services() []netfilter.Rule {
	rules := []netfilter.Rule{
		translated(),
		{Sets: f.in(setIgnored, "dst", false), Target: netfilter.Return()},
		{
			DestType: netfilter.NotLocal,
			Sets:     f.in(setClusterIP, "dst", false),
			Target:   netfilter.Jump(chainReject),
		},
	}
	return append(rules, netfilter.DropUnallocated(f.unallocated)...)
}

// hooks are in the order in which they are installed. Their comments are
// kube-proxy's.
func hooks() []program.Hook {
	portals := netfilter.Rule{Comment: "kubernetes service portals", Target: netfilter.Jump(chainServices)}
	fresh := func(comment, chain string) netfilter.Rule {
		return netfilter.Rule{
			Comment:   comment,
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateNew},
			Target:    netfilter.Jump(chain),
		}
	}
	var (
		firewall = fresh("kubernetes load balancer firewall", chainFirewall)
		external = fresh("kubernetes externally-visible service portals", chainExternal)
		services = fresh(portals.Comment, chainServices)
	)
	return []program.Hook{
		{ID: program.ChainID{Table: netfilter.NAT, Name: "PREROUTING"}, Jumps: []netfilter.Rule{portals}},
		{ID: program.ChainID{Table: netfilter.NAT, Name: "OUTPUT"}, Jumps: []netfilter.Rule{portals}},
		{ID: program.ChainID{Table: netfilter.NAT, Name: "POSTROUTING"}, Jumps: []netfilter.Rule{
			{Comment: "kubernetes postrouting rules", Target: netfilter.Jump(chainPostrouting)},
		}},
		{ID: program.ChainID{Table: netfilter.Filter, Name: "INPUT"}, Jumps: []netfilter.Rule{
			firewall, external,
			{Comment: "kubernetes health check service ports", Target: netfilter.Jump(chainNodePorts)},
		}},
		{ID: program.ChainID{Table: netfilter.Filter, Name: "FORWARD"}, Jumps: []netfilter.Rule{
			firewall,
			{Comment: "kubernetes forwarding rules", Target: netfilter.Jump(chainForward)},
			external, services,
		}},
		{ID: program.ChainID{Table: netfilter.Filter, Name: "OUTPUT"}, Jumps: []netfilter.Rule{firewall, external, services}},
	}
}
