package ipvs

import (
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Our chains. All names begin alike, which those of other modes do not.
const (
	chainPrefix       = "KUBE-IPVS-"
	chainFirewall     = "KUBE-IPVS-FIREWALL"        // mangle: who is dropped
	chainSources      = "KUBE-IPVS-SOURCES"         // mangle: source ranges
	chainOutside      = "KUBE-IPVS-OUTSIDE"         // mangle: drops flows from outside
	chainServices     = "KUBE-IPVS-SERVICES"        // nat: who is masqueraded and renamed
	chainClusterIP    = "KUBE-IPVS-CLUSTER-IP"      // nat
	chainExternal     = "KUBE-IPVS-EXTERNAL"        // nat
	chainExternalLoc  = "KUBE-IPVS-EXTERNAL-LOCAL"  // nat
	chainNodePort     = "KUBE-IPVS-NODE-PORT"       // nat and filter
	chainNodePortLoc  = "KUBE-IPVS-NODE-PORT-LOCAL" // nat
	chainPostrouting  = "KUBE-IPVS-POSTROUTING"     // nat
	chainFilter       = "KUBE-IPVS-FILTER"          // filter: who is rejected
	chainInput        = "KUBE-IPVS-INPUT"           // filter: who is let in
	chainForward      = "KUBE-IPVS-FORWARD"         // filter: who is let through
	chainReject       = "KUBE-IPVS-REJECT"          // filter
	chainOthers       = "KUBE-SERVICES"             // nat: our iptables mode's, or kube-proxy's
	chainProxyNodes   = "KUBE-NODE-PORT"            // kube-proxy's; we only remove it
	chainProxyBalance = "KUBE-LOAD-BALANCER"        // likewise
	chainProxySources = "KUBE-SOURCE-RANGES-FIREWALL"
)

// chainID names a chain of a table.
type chainID struct {
	table netfilter.Table
	name  string
}

// String returns "nat chain NAME".
func (id chainID) String() string { return string(id.table) + " chain " + id.name }

// ownsChain tells whether a chain is ours by its name, or kube-proxy's of the
// same mode, which comes to the same. The chains that kube-proxy has in every
// mode (KUBE-SERVICES, KUBE-POSTROUTING …) belong to our iptables mode.
func ownsChain(name string) bool { return strings.HasPrefix(name, chainPrefix) || isLeftover(name) }

// isLeftover tells whether kube-proxy alone has chains of that name.
func isLeftover(name string) bool {
	return name == chainProxyNodes || name == chainProxyBalance || name == chainProxySources
}

// set is one of our sets, by what its name ends with. The names that do not
// begin with IPVS are kube-proxy's, and mean the same.
type set string

// The sets.
const (
	setClusterIP set = "CLUSTER-IP" // ClusterIPs that forward
	setBalancer  set = "LOAD-BALANCER"
	setBalancerL set = "LOAD-BALANCER-LOCAL" // of those, who tells outside from inside
	setExternal  set = "EXTERNAL-IP"
	setExternalL set = "EXTERNAL-IP-LOCAL"
	setFirewall  set = "LOAD-BALANCER-FW"          // frontends with source ranges
	setSources   set = "LOAD-BALANCER-SOURCE-CIDR" // and the ranges
	setLoopBack  set = "LOOP-BACK"                 // endpoints, to themselves
	setHealth    set = "HEALTH-CHECK-NODE-PORT"
	setNodePort  set = "NODE-PORT-"       // by protocol
	setNodePortL set = "NODE-PORT-LOCAL-" // by protocol

	setIPs         set = "IPVS-IPS"          // ClusterIPs that are local to this node by us
	setAlias       set = "IPVS-ALIAS"        // aliases, which nobody may use as such
	setFrontend    set = "IPVS-FRONTEND"     // every frontend with an address of its own
	setHeld        set = "IPVS-HELD"         // ClusterIPs that this node has on another device
	setMasquerade  set = "IPVS-MASQUERADE"   // ClusterIPs that masquerade pods, too
	setReject      set = "IPVS-REJECT"       // frontends that reject everybody
	setDrop        set = "IPVS-DROP"         // frontends that drop everybody
	setDropOutside set = "IPVS-DROP-OUTSIDE" // frontends that drop flows from outside
	setDenyNode    set = "IPVS-DENY-NODE"    // frontends whose source ranges exclude this node
	setIgnored     set = "IPVS-IGNORED"      // ClusterIPs of other proxies
	setNodeIP      set = "IPVS-NODE-IP"      // where NodePorts answer

	setNodePortReject  set = "IPVS-NODE-PORT-REJECT-"
	setNodePortOutside set = "IPVS-NODE-PORT-OUTSIDE-" // NodePorts that drop flows from outside
)

// of is the set of a protocol where there is one for each.
func (s set) of(p dataplane.Protocol) set { return s + set(p.String()) }

// protocols are those that Services have.
func protocols() []dataplane.Protocol {
	return []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP}
}

// sets lists them in the order in which entries are added; see order.go.
func sets() []set {
	all := []set{setSources, setDenyNode, setFirewall, setReject, setDrop, setDropOutside}
	for _, p := range protocols() {
		all = append(all, setNodePortReject.of(p), setNodePortOutside.of(p))
	}
	all = append(all, setLoopBack, setHealth, setIgnored, setAlias, setMasquerade, setClusterIP)
	all = append(all, setBalancerL, setExternalL, setHeld)
	for _, p := range protocols() {
		all = append(all, setNodePortL.of(p))
	}
	all = append(all, setBalancer, setExternal)
	for _, p := range protocols() {
		all = append(all, setNodePort.of(p))
	}
	return append(all, setFrontend, setIPs, setNodeIP)
}

// kind is the set's type.
func (s set) kind() netfilter.SetType {
	switch s {
	case setIPs, setAlias, setIgnored, setNodeIP:
		return netfilter.HashIP
	case setLoopBack:
		return netfilter.HashIPPortIP
	case setSources:
		return netfilter.HashIPPortNet
	case setHealth:
		return netfilter.BitmapPort
	}
	if strings.Contains(string(s), "NODE-PORT-") {
		return netfilter.BitmapPort
	}
	return netfilter.HashIPPort
}

// maxSetName is the kernel's limit. kube-proxy cuts the one name that is
// longer, too (kubernetes#86773).
const maxSetName = 31

// name is the set's name in the kernel.
func (s set) name(f dataplane.Family) string {
	name := "KUBE-" + string(s)
	if f == dataplane.IPv6 {
		name = "KUBE-6-" + string(s)
	}
	return name[:min(len(name), maxSetName)]
}

// maxEntries is the limit of a set; memory is taken as it fills.
const maxEntries = 1 << 20

// empty is the set as it is made.
func (s set) empty(f dataplane.Family) netfilter.Set {
	if s.kind() == netfilter.BitmapPort {
		return netfilter.Set{Name: s.name(f), Type: s.kind(), LastPort: 65535}
	}
	return netfilter.Set{Name: s.name(f), Type: s.kind(), Family: f, MaxEntries: maxEntries}
}

// entry is the change that adds an entry or takes it out.
func (s set) entry(f dataplane.Family, e netfilter.SetEntry) netfilter.SetChange {
	return netfilter.SetChange{Set: s.name(f), Type: s.kind(), Entry: e}
}

// ownsSet tells whether a set is ours by its name.
func ownsSet(f dataplane.Family, name string) bool {
	return slices.ContainsFunc(sets(), func(s set) bool { return s.name(f) == name })
}

// isLeftoverSet tells whether kube-proxy alone has sets of that name.
func isLeftoverSet(f dataplane.Family, name string) bool {
	for _, s := range []set{
		"LOAD-BALANCER-SOURCE-IP", "NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH",
	} {
		if s.name(f) == name {
			return true
		}
	}
	return false
}
