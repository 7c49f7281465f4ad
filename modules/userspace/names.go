package userspace

import (
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Chains with fixed names, each in nat and in filter. Operators know the nat
// ones from kube-proxy's userspace mode.
const (
	chainPortals      = "KUBE-PORTALS-CONTAINER" // flows that come to this node
	chainPortalsHost  = "KUBE-PORTALS-HOST"      // flows of this node itself
	chainNodePort     = "KUBE-NODEPORT-CONTAINER"
	chainNodePortHost = "KUBE-NODEPORT-HOST"
	chainGuard        = "KUBE-PORTALS-GUARD"      // filter: the listeners
	chainReject       = "KUBE-PORTALS-REJECT"     // filter
	chainNonLocal     = "KUBE-NODEPORT-NON-LOCAL" // kube-proxy's; we only remove it
)

// Beginnings of the buckets of NodePorts; the names of the chains above them
// leave no room.
const (
	bucketsNodePort     = "KUBE-NODEPORT-CONT"
	bucketsNodePortHost = "KUBE-NODEPORT-HOST"
)

// Prefixes of chains of one ServicePort.
const (
	prefixPool    = "KUBE-USP-" // nat: leads to a listener
	prefixSources = "KUBE-USF-" // nat and filter: source ranges
)

// poolKey names a set of endpoints of a ServicePort in the plane's family.
type poolKey struct {
	name  dataplane.ServicePortName
	scope dataplane.Scope
}

// chain leads to the pool's listener.
func (k poolKey) chain() string {
	return netfilter.ChainName(prefixPool, k.name.String()+"#"+k.scope.String())
}

// sourcesChain names the chain of the source ranges of a frontend. Service
// names hold no "#".
func sourcesChain(n dataplane.ServicePortName, k dataplane.FrontendKey) string {
	return netfilter.ChainName(prefixSources, n.String()+"#"+k.String())
}

// ownsChain tells whether a chain is ours by its name, or kube-proxy's in the
// same mode.
func ownsChain(t netfilter.Table, name string) bool {
	if t != netfilter.NAT && t != netfilter.Filter {
		return false
	}
	switch name {
	case chainPortals, chainPortalsHost, chainNodePort, chainNodePortHost, chainGuard, chainReject, chainNonLocal:
		return true
	}
	for _, p := range []string{
		chainPortals + "-", chainPortalsHost + "-", bucketsNodePort + "-", bucketsNodePortHost + "-", prefixPool, prefixSources,
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// set is a set by what its name ends with.
type set string

// The sets.
const (
	setFrontend  set = "FRONTEND"   // addresses and ports that are a Service's
	setReject    set = "REJECT"     // all of them but ClusterIPs that nat redirects
	setClusterIP set = "CLUSTER-IP" // ClusterIPs
	setIgnored   set = "IGNORED-IP" // ClusterIPs of other proxies
	setNodeIP    set = "NODE-IP"    // where NodePorts answer
	setHealth    set = "HEALTH"     // healthCheckNodePorts
	setListener  set = "LISTENER-"  // ports of the relay, by protocol
	setNodePort  set = "NODEPORT-"  // NodePorts, by protocol
)

// of is the set of a protocol where there is one for each.
func (s set) of(p dataplane.Protocol) set { return s + set(p.String()) }

func protocols() []dataplane.Protocol {
	return []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP}
}

// relayed are the protocols that the relay carries.
func relayed() []dataplane.Protocol { return []dataplane.Protocol{dataplane.TCP, dataplane.UDP} }

func allSets() []set {
	all := []set{setFrontend, setReject, setClusterIP, setIgnored, setNodeIP, setHealth}
	for _, p := range relayed() {
		all = append(all, setListener.of(p))
	}
	for _, p := range protocols() {
		all = append(all, setNodePort.of(p))
	}
	return all
}

// maxEntries is the limit of a set; memory is taken as it fills.
const maxEntries = 1 << 20

// empty is the set as it is made.
func (s set) empty(f dataplane.Family) netfilter.Set {
	made := netfilter.Set{Name: s.name(f), Type: netfilter.BitmapPort, LastPort: 65535}
	switch s {
	case setClusterIP, setIgnored, setNodeIP:
		made = netfilter.Set{Name: s.name(f), Type: netfilter.HashIP, Family: f, MaxEntries: maxEntries}
	case setFrontend, setReject:
		made = netfilter.Set{Name: s.name(f), Type: netfilter.HashIPPort, Family: f, MaxEntries: maxEntries}
	}
	return made
}

func (s set) name(f dataplane.Family) string { return setPrefix(f) + string(s) }

// matches is the match of a set by parts of a packet.
func (s set) matches(f dataplane.Family, parts string) [2]netfilter.SetMatch {
	return [2]netfilter.SetMatch{{Name: s.name(f), Parts: parts}}
}

func setPrefix(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "KUBE-6-USR-"
	}
	return "KUBE-USR-"
}

func ownsSet(f dataplane.Family, name string) bool { return strings.HasPrefix(name, setPrefix(f)) }

// entry is the change that adds an entry or takes it out.
func (s set) entry(f dataplane.Family, e netfilter.SetEntry) netfilter.SetChange {
	return netfilter.SetChange{Set: s.name(f), Type: s.empty(f).Type, Entry: e}
}
