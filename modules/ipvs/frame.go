package ipvs

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// frame is all rules: they depend on the node and on no Service.
type frame struct {
	family      dataplane.Family
	mark        uint32
	randomFully bool
	dropInvalid bool
	unallocated []netip.Prefix // ServiceCIDRs whose unknown addresses are dropped
	local       locality
	// lenient does not drop addresses that no Service has.
	lenient bool
	// yields leaves ClusterIPs to the rules of another proxy, which translate
	// behind ours, until all is there.
	yields bool
}

func newFrame(n *dataplane.Node, f dataplane.Family, randomFully bool) frame {
	fr := frame{
		family: f, mark: n.Mark, randomFully: randomFully, dropInvalid: n.DropInvalid, local: locality{netfilter.LocalityOf(n, f)},
	}
	if n.DropUnallocated {
		fr.unallocated = netfilter.OfFamily(n.ServiceCIDRs, f)
	}
	return fr
}

// chains returns our chains with their rules.
func (f frame) chains() map[chainID][]netfilter.Rule {
	return map[chainID][]netfilter.Rule{
		{netfilter.Mangle, chainFirewall}: f.firewall(),
		{netfilter.Mangle, chainSources}:  f.sources(),
		{netfilter.Mangle, chainOutside}:  f.dropOutside(),

		{netfilter.Filter, chainFilter}:   f.filter(),
		{netfilter.Filter, chainNodePort}: f.rejectedNodePorts(),
		{netfilter.Filter, chainInput}:    f.input(),
		{netfilter.Filter, chainForward}:  f.forward(),
		{netfilter.Filter, chainReject}: {
			{Protocol: netfilter.Is(dataplane.TCP), Target: netfilter.Reject(netfilter.TCPReset)},
			{Target: netfilter.Reject(netfilter.PortUnreachable(f.family))},
		},

		{netfilter.NAT, chainServices}:    f.services(),
		{netfilter.NAT, chainClusterIP}:   f.clusterIP(),
		{netfilter.NAT, chainExternal}:    f.external(),
		{netfilter.NAT, chainExternalLoc}: f.split(netfilter.Netmap(f.aliases(false)), netfilter.Netmap(f.aliases(true))),
		{netfilter.NAT, chainNodePort}:    f.nodePort(),
		{netfilter.NAT, chainNodePortLoc}: f.split(f.toNodePort(false), f.toNodePort(true)),
		{netfilter.NAT, chainPostrouting}: f.postrouting(),
	}
}

func (f frame) aliases(outside bool) netip.Prefix { return aliasRange(f.family, outside) }

func (f frame) toNodePort(outside bool) netfilter.Target {
	return netfilter.DNAT(netip.AddrPortFrom(nodePortAlias(f.family, outside), 0))
}

// in matches a set.
func (f frame) in(s set, parts string) [2]netfilter.SetMatch {
	return [2]netfilter.SetMatch{{Name: s.name(f.family), Parts: parts}}
}

// frontends matches flows whose destination is in a set of addresses and ports.
func (f frame) frontends(s set, target netfilter.Target) netfilter.Rule {
	return netfilter.Rule{Sets: f.in(s, "dst,dst"), Target: target}
}

// nodePorts matches flows to NodePorts in a set, one rule for each protocol.
func (f frame) nodePorts(s set, target netfilter.Target) []netfilter.Rule {
	var rules []netfilter.Rule
	for _, p := range protocols() {
		rules = append(rules, netfilter.Rule{
			Protocol: netfilter.Is(p), Sets: f.in(s.of(p), "dst"), Target: target,
		})
	}
	return rules
}

func fromNode(target netfilter.Target) netfilter.Rule {
	return netfilter.Rule{SourceType: netfilter.Local, Target: target}
}

func (f frame) fromPods(target netfilter.Target) netfilter.Rule {
	r := f.local.FromPods()
	r.Target = target
	return r
}

// firewall drops before anything else happens to a flow. It is in mangle,
// because IPVS takes the node's own flows before the filter table sees them.
func (f frame) firewall() []netfilter.Rule {
	rules := []netfilter.Rule{
		{Comment: "aliases of frontends", Sets: f.in(setAlias, "dst"), Target: netfilter.Drop()},
		f.frontends(setFirewall, netfilter.Jump(chainSources)),
		f.frontends(setDrop, netfilter.Drop()),
		f.frontends(setDropOutside, netfilter.Goto(chainOutside)),
		f.frontends(setFrontend, netfilter.Return()),
	}
	for _, r := range f.nodePorts(setNodePortOutside, netfilter.Goto(chainOutside)) {
		r.Sets[1] = netfilter.SetMatch{Name: setNodeIP.name(f.family), Parts: "dst"}
		rules = append(rules, r)
	}
	return rules
}

// sources lets only listed sources pass. The node's own flows are judged by
// its primary address, whatever their source is.
func (f frame) sources() []netfilter.Rule {
	denied := f.frontends(setDenyNode, netfilter.Drop())
	denied.SourceType = netfilter.Local
	return []netfilter.Rule{
		denied,
		fromNode(netfilter.Return()),
		{Sets: f.in(setSources, "dst,dst,src"), Target: netfilter.Return()},
		{Target: netfilter.Drop()},
	}
}

func (f frame) dropOutside() []netfilter.Rule {
	rules := []netfilter.Rule{fromNode(netfilter.Return())}
	if f.local.HasPods {
		rules = append(rules, f.fromPods(netfilter.Return()))
	}
	return append(rules, netfilter.Rule{Target: netfilter.Drop()})
}

// services marks what must be masqueraded and gives external addresses their
// aliases. What is IPVS' own ends here: a ClusterIP is a local address, which
// rules of host ports take, whatever the port (CVE-2019-9946).
func (f frame) services() []netfilter.Rule {
	rules := []netfilter.Rule{
		f.frontends(setClusterIP, netfilter.Jump(chainClusterIP)),
		f.frontends(setBalancer, netfilter.Goto(chainExternal)),
		f.frontends(setExternal, netfilter.Goto(chainExternal)),
	}
	if !f.yields {
		rules = append(
			rules,
			f.frontends(setFrontend, netfilter.Accept()),
			netfilter.Rule{Sets: f.in(setIPs, "dst"), Target: netfilter.Accept()},
		)
	}
	return append(rules, netfilter.Rule{Sets: f.in(setNodeIP, "dst"), Target: netfilter.Goto(chainNodePort)})
}

func (f frame) markMasquerade() netfilter.Target { return netfilter.OrMark(f.mark) }

// clusterIP marks the node's flows, and those from outside if they can be told
// from pods.
func (f frame) clusterIP() []netfilter.Rule {
	rules := []netfilter.Rule{
		f.frontends(setMasquerade, f.markMasquerade()),
		fromNode(f.markMasquerade()),
	}
	if f.local.TellsPods() {
		r := f.local.NotFromPods()
		r.Target = f.markMasquerade()
		rules = append(rules, r)
	}
	return append(rules, f.frontends(setHeld, netfilter.Netmap(f.aliases(false))))
}

func (f frame) external() []netfilter.Rule {
	return []netfilter.Rule{
		f.frontends(setBalancerL, netfilter.Goto(chainExternalLoc)),
		f.frontends(setExternalL, netfilter.Goto(chainExternalLoc)),
		{Target: f.markMasquerade()},
		{Target: netfilter.Netmap(f.aliases(false))},
	}
}

func (f frame) nodePort() []netfilter.Rule {
	rules := f.nodePorts(setNodePortL, netfilter.Goto(chainNodePortLoc))
	rules = append(rules, f.nodePorts(setNodePort, f.markMasquerade())...)
	return append(rules, f.nodePorts(setNodePort, f.toNodePort(false))...)
}

// split sends those from outside another way. The replies to a pod that may be
// on another node would not come back here, so its source is replaced.
func (f frame) split(inside, outside netfilter.Target) []netfilter.Rule {
	rules := []netfilter.Rule{fromNode(f.markMasquerade()), fromNode(inside)}
	if f.local.HasPods {
		for _, p := range f.local.SourcesOnNode() {
			rules = append(rules, netfilter.Rule{Source: netfilter.MatchPrefix(p), Target: inside})
		}
		if f.local.ByRange() {
			rules = append(rules, f.fromPods(f.markMasquerade()))
		}
		rules = append(rules, f.fromPods(inside))
	}
	return append(rules, netfilter.Rule{Target: outside})
}

// postrouting masquerades flows with the mark, and those of an endpoint to
// itself (kubernetes#20475), which can be known only after IPVS chose. The mark
// is cleared: another device may take the packet through here again.
func (f frame) postrouting() []netfilter.Rule {
	return []netfilter.Rule{
		{SourceType: netfilter.NotLocal, Sets: f.in(setLoopBack, "dst,dst,src"), Target: f.markMasquerade()},
		{Mark: netfilter.MarkMatch{Value: f.mark, Mask: f.mark, Not: true}, Target: netfilter.Return()},
		{Target: netfilter.XorMark(f.mark)},
		{Comment: "kubernetes service traffic requiring SNAT", Target: netfilter.Masquerade(f.randomFully)},
	}
}

// filter rejects. Flows that the nat table translated are somebody's already.
func (f frame) filter() []netfilter.Rule {
	rules := []netfilter.Rule{
		{Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT}, Target: netfilter.Return()},
		f.frontends(setReject, netfilter.Jump(chainReject)),
		f.frontends(setFrontend, netfilter.Return()),
		{Sets: f.in(setNodeIP, "dst"), Target: netfilter.Jump(chainNodePort)},
	}
	rules = append(
		rules,
		netfilter.Rule{Sets: f.in(setIgnored, "dst"), Target: netfilter.Return()},
		netfilter.Rule{Sets: f.in(setIPs, "dst"), Target: netfilter.Jump(chainReject)},
	)
	if f.lenient {
		return rules
	}
	return append(rules, netfilter.DropUnallocated(f.unallocated)...)
}

func (f frame) rejectedNodePorts() []netfilter.Rule {
	return f.nodePorts(setNodePortReject, netfilter.Jump(chainReject))
}

// input lets in what we masquerade, where the policy of INPUT is DROP: IPVS
// takes flows there, and in other modes they pass FORWARD.
func (f frame) input() []netfilter.Rule {
	return []netfilter.Rule{
		{
			Protocol: netfilter.Is(dataplane.TCP), Comment: "kubernetes health check service ports",
			Sets: f.in(setHealth, "dst"), Target: netfilter.Accept(),
		},
		{Mark: netfilter.MatchMark(f.mark, f.mark), Target: netfilter.Accept()},
	}
}

// forward accepts replies, and an endpoint's flow to itself, where the policy of
// FORWARD is DROP. The first packet of a flow never passes it.
func (f frame) forward() []netfilter.Rule {
	var rules []netfilter.Rule
	if f.dropInvalid {
		rules = append(rules, netfilter.Rule{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateInvalid}, Target: netfilter.Drop(),
		})
	}
	return append(
		rules,
		netfilter.Rule{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateRelated | netfilter.StateEstablished},
			Target:    netfilter.Accept(),
		},
		netfilter.Rule{
			Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT},
			Sets:      f.in(setLoopBack, "dst,dst,src"),
			Target:    netfilter.Accept(),
		},
	)
}

func (f frame) equal(o frame) bool {
	return f.family == o.family && f.mark == o.mark && f.randomFully == o.randomFully && f.lenient == o.lenient && f.yields == o.yields &&
		f.dropInvalid == o.dropInvalid && slices.Equal(f.unallocated, o.unallocated) && f.local.Equal(o.local.Locality)
}

// hook is a chain of the kernel with the jumps that must stand first in it.
type hook struct {
	id    chainID
	jumps []netfilter.Rule
}

// hooks are in the order in which they are installed.
func hooks() []hook {
	jump := func(comment, chain string) netfilter.Rule {
		return netfilter.Rule{Comment: comment, Target: netfilter.Jump(chain)}
	}
	fresh := func(comment, chain string) netfilter.Rule {
		r := jump(comment, chain)
		r.Conntrack = netfilter.ConntrackMatch{States: netfilter.StateNew}
		return r
	}
	var (
		portals  = jump("kubernetes service portals", chainServices)
		firewall = fresh("kubernetes service firewall", chainFirewall)
		filter   = fresh("kubernetes ipvs access filter", chainFilter)
	)
	return []hook{
		{chainID{netfilter.Mangle, "PREROUTING"}, []netfilter.Rule{firewall}},
		{chainID{netfilter.Mangle, "OUTPUT"}, []netfilter.Rule{firewall}},
		{chainID{netfilter.Filter, "INPUT"}, []netfilter.Rule{filter, jump("kubernetes ipvs input rules", chainInput)}},
		{chainID{netfilter.Filter, "FORWARD"}, []netfilter.Rule{jump("kubernetes forwarding rules", chainForward), filter}},
		{chainID{netfilter.Filter, "OUTPUT"}, []netfilter.Rule{filter}},
		{chainID{netfilter.NAT, "PREROUTING"}, []netfilter.Rule{portals}},
		{chainID{netfilter.NAT, "OUTPUT"}, []netfilter.Rule{portals}},
		{chainID{netfilter.NAT, "POSTROUTING"}, []netfilter.Rule{jump("kubernetes postrouting rules", chainPostrouting)}},
	}
}
