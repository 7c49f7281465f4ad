package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Chains with fixed names. Operators know them from kube-proxy.
const (
	chainServices    = "KUBE-SERVICES"
	chainNodePorts   = "KUBE-NODEPORTS"
	chainPostrouting = "KUBE-POSTROUTING"
	chainMarkMasq    = "KUBE-MARK-MASQ"
	chainExternal    = "KUBE-EXTERNAL-SERVICES"
	chainFirewall    = "KUBE-PROXY-FIREWALL"
	chainForward     = "KUBE-FORWARD"
	chainReject      = "KUBE-REJECT"
	chainCanary      = "KUBE-PROXY-CANARY" // kube-proxy's; we only remove it
)

// kind is the beginning of the name of a chain that a ServicePort owns.
type kind string

// The kinds of chains of a ServicePort.
const (
	kindCluster  kind = "KUBE-SVC-" // the pool of the whole cluster
	kindLocal    kind = "KUBE-SVL-" // the pool of this node
	kindEndpoint kind = "KUBE-SEP-" // an endpoint, if there is affinity
	kindExternal kind = "KUBE-EXT-" // routes that differ by origin
	kindFirewall kind = "KUBE-FW-"  // source ranges
)

// hash is 80 bits of SHA-256 over the name and whatever else tells the object
// from its siblings, as 16 characters that chains and sets may have. With
// nothing else it is what kube-proxy uses, so that operators find the names
// they know. No two names run together: "/" and ":" occur in no Kubernetes
// name, and no protocol's name ends with that of another one.
func hash(n dataplane.ServicePortName, more ...string) string {
	text := n.Service().String()
	if n.Port != "" {
		text += ":" + n.Port
	}
	text += strings.ToLower(n.Protocol.String()) + strings.Join(more, "#")
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// poolChain names the chain that chooses among the endpoints of a pool.
func poolChain(n dataplane.ServicePortName, s dataplane.Scope) string {
	if s == dataplane.Local {
		return string(kindLocal) + hash(n)
	}
	return string(kindCluster) + hash(n)
}

// groupChain names a part of a pool's chain: 28 bytes, which is the limit.
func groupChain(pool string, group int) string { return fmt.Sprintf("%s-%02x", pool, group) }

// endpointChain names the chain that binds a client to an endpoint.
func endpointChain(n dataplane.ServicePortName, s dataplane.Scope, ep netip.AddrPort) string {
	return string(kindEndpoint) + hash(n, endpointKey(s, ep)...)
}

// affinitySet names the set of the clients that are bound to an endpoint.
func affinitySet(n dataplane.ServicePortName, s dataplane.Scope, ep netip.AddrPort) string {
	prefix := affinityPrefix(dataplane.FamilyOf(ep.Addr()))
	return prefix + hash(n, endpointKey(s, ep)...)
}

func affinityPrefix(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "KUBE-AFF6-"
	}
	return "KUBE-AFF-"
}

func endpointKey(s dataplane.Scope, ep netip.AddrPort) []string {
	if s == dataplane.Local {
		return []string{ep.String(), "Local"}
	}
	return []string{ep.String()}
}

// numbered names the nth chain of a kind of a ServicePort, from 0. Nearly all
// have one only.
func numbered(k kind, n dataplane.ServicePortName, i int) string {
	if i == 0 {
		return string(k) + hash(n)
	}
	return string(k) + hash(n, strconv.Itoa(i))
}

// set is a set that all Services share, by what its name ends with.
type set string

// The shared sets.
const (
	setClusterIP  set = "CLUSTER-IP" // ClusterIPs
	setIgnored    set = "IGNORED-IP" // ClusterIPs of other proxies
	setNodeIP     set = "NODE-IP"    // where NodePorts answer
	setMasquerade set = "MASQUERADE" // ClusterIPs with port, masqueraded for all but pods
	setDrop       set = "DROP"       // frontends that drop what is not translated
	setReject     set = "REJECT"     // frontends that reject what is not translated
	setFirewall   set = "FIREWALL"   // frontends with a rule in KUBE-PROXY-FIREWALL
	setLoopBack   set = "LOOP-BACK"  // endpoints on this node, to themselves
	setHealth     set = "HEALTH"     // healthCheckNodePorts

	setNodePortDrop   set = "NODEPORT-DROP-"   // NodePorts, by protocol
	setNodePortReject set = "NODEPORT-REJECT-" // NodePorts, by protocol
)

// of is the set of a protocol where there is one for each.
func (s set) of(p dataplane.Protocol) set { return s + set(p.String()) }

// protocols are those that Services have.
func protocols() []dataplane.Protocol {
	return []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP}
}

// sharedSets lists them.
func sharedSets() []set {
	all := []set{setClusterIP, setIgnored, setNodeIP, setMasquerade, setDrop, setReject, setFirewall, setLoopBack, setHealth}
	for _, p := range protocols() {
		all = append(all, setNodePortDrop.of(p), setNodePortReject.of(p))
	}
	return all
}

// name is the set's name in the kernel.
func (s set) name(f dataplane.Family) string { return setPrefix(f) + string(s) }

// kind is the set's type.
func (s set) kind() netfilter.SetType {
	switch s {
	case setClusterIP, setIgnored, setNodeIP:
		return netfilter.HashIP
	case setMasquerade, setDrop, setReject, setFirewall:
		return netfilter.HashIPPort
	case setLoopBack:
		return netfilter.HashIPPortIP
	}
	return netfilter.BitmapPort
}

// maxEntries is the limit of a shared set; memory is taken as it fills.
const maxEntries = 1 << 20

// empty is the set as it is made.
func (s set) empty(f dataplane.Family) netfilter.Set {
	if s.kind() == netfilter.BitmapPort {
		return netfilter.Set{Name: s.name(f), Type: s.kind(), LastPort: 65535}
	}
	return netfilter.Set{Name: s.name(f), Type: s.kind(), Family: f, MaxEntries: maxEntries}
}

// setPrefix begins the names of shared sets. They differ from those of
// kube-proxy's IPVS mode, some of which are of another type.
func setPrefix(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "KUBE-6-IPT-"
	}
	return "KUBE-IPT-"
}

// ownsSet tells whether a set is ours by its name.
func ownsSet(f dataplane.Family, name string) bool {
	return strings.HasPrefix(name, setPrefix(f)) || strings.HasPrefix(name, affinityPrefix(f))
}

// ownsChain tells whether a chain is ours by its name, or kube-proxy's in the
// same mode, which comes to the same: what it left is taken over. Those of
// kubelet (KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-IPTABLES-HINT,
// KUBE-KUBELET-CANARY) and those of other modes are not.
func ownsChain(t netfilter.Table, name string) bool {
	if name == chainCanary {
		return true
	}
	switch t {
	case netfilter.NAT:
		return oneOf(name, chainServices, chainNodePorts, chainPostrouting, chainMarkMasq) ||
			begins(name, chainServices+"-", chainNodePorts+"-", string(kindCluster), string(kindLocal),
				string(kindEndpoint), string(kindExternal), string(kindFirewall), "KUBE-XLB-")
	case netfilter.Filter:
		return oneOf(name, chainServices, chainExternal, chainNodePorts, chainForward, chainFirewall, chainReject) ||
			begins(name, chainFirewall+"-", string(kindFirewall))
	}
	return false
}
