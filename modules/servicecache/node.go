package servicecache

import (
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/portway/portway/modules/dataplane"
)

const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// NodeStatus is what health checks want to know of the node.
type NodeStatus struct {
	Known       bool // the Node object exists
	Deleting    bool
	ToBeDeleted bool // the cluster autoscaler says so
}

// nodeFacts are what the Node object says. They outlive the object: a node
// that is taken out of the cluster forwards to its end (kubernetes#111321).
type nodeFacts struct {
	status    NodeStatus
	zone      string
	addresses []netip.Addr // all of status.addresses
	primary   byFamily[netip.Addr]
	podCIDRs  []netip.Prefix
	detects   byFamily[bool]
	detectors []dataplane.Detector
}

// SetNode adds or replaces the Node object. Those of other nodes are ignored.
func (c *Cache) SetNode(o *corev1.Node) { namedFacts{o.Name, readNode(o)}.set(c) }

// DeleteNode tells that the Node object is gone. What it said still counts.
func (c *Cache) DeleteNode(name string) {
	if name == c.NodeName {
		c.node.status = NodeStatus{}
	}
}

// NodeStatus returns what is known of the Node object.
func (c *Cache) NodeStatus() NodeStatus { return c.node.status }

func readNode(o *corev1.Node) nodeFacts {
	n := nodeFacts{
		status: NodeStatus{Known: true, Deleting: o.DeletionTimestamp != nil},
		zone:   o.Labels[corev1.LabelTopologyZone],
	}
	for _, t := range o.Spec.Taints {
		n.status.ToBeDeleted = n.status.ToBeDeleted || t.Key == toBeDeletedTaint
	}
	n.readAddresses(o, corev1.NodeInternalIP)
	n.readAddresses(o, corev1.NodeExternalIP)
	cidrs := o.Spec.PodCIDRs
	if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
		cidrs = []string{o.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		if p, err := parsePrefix(text); err == nil {
			n.podCIDRs = append(n.podCIDRs, p)
		}
	}
	return n
}

func (n *nodeFacts) readAddresses(o *corev1.Node, of corev1.NodeAddressType) {
	for _, in := range o.Status.Addresses {
		if in.Type != of {
			continue
		}
		a, err := parseAddr(in.Address)
		if err != nil {
			continue
		}
		n.addresses = append(n.addresses, a)
		if slot := n.primary.of(dataplane.FamilyOf(a)); !slot.IsValid() {
			*slot = a
		}
	}
}

// setNodeFacts completes them by the configuration. All Services are evaluated
// anew if something changed that they depend on.
func (c *Cache) setNodeFacts(n nodeFacts) {
	for _, a := range c.NodeIPs {
		a = a.Unmap()
		*n.primary.of(dataplane.FamilyOf(a)) = a
		n.addresses = append(n.addresses, a)
	}
	n.detectors = c.detectors(n.podCIDRs)
	for _, d := range n.detectors {
		*n.detects.of(d.Family) = true
	}
	if n.zone != c.node.zone || n.primary != c.node.primary || n.detects != c.node.detects {
		for _, e := range c.entries {
			c.mark(e)
		}
	}
	c.node, c.dirtyNode = n, true
}

func (c *settings) detectors(podCIDRs []netip.Prefix) []dataplane.Detector {
	var ds []dataplane.Detector
	byPrefix := func(ps []netip.Prefix) {
		for _, p := range firstOfFamily(ps) {
			ds = append(ds, dataplane.Detector{Family: prefixFamily(p), Prefix: p.Masked()})
		}
	}
	switch c.DetectLocal {
	case DetectClusterCIDR:
		byPrefix(c.ClusterCIDRs)
	case DetectNodeCIDR:
		byPrefix(podCIDRs)
	case DetectBridgeInterface, DetectInterfaceNamePrefix:
		for _, f := range dataplane.Families() {
			ds = append(ds, dataplane.Detector{
				Family: f, Interface: c.Interface, IsPrefix: c.DetectLocal == DetectInterfaceNamePrefix,
			})
		}
	}
	return ds
}

// Local is what this machine says of itself.
type Local struct {
	// Addresses are all that it holds, with the lengths of their networks, on
	// any device but those that Portway made; loopback ones included.
	Addresses []netip.Prefix `json:"addresses"`
	// ConntrackLiberal: nf_conntrack_tcp_be_liberal is set.
	ConntrackLiberal bool `json:"conntrackLiberal,omitempty"`
	// LoopbackNodePorts: NodePorts answer on loopback as far as the Config's
	// NodePortAddresses admit it. When these name it, they do anyhow.
	LoopbackNodePorts bool `json:"loopbackNodePorts,omitempty"`
}

// SetLocal replaces what the machine says of itself.
func (c *Cache) SetLocal(l Local) {
	ps := make([]netip.Prefix, 0, len(l.Addresses))
	for _, p := range l.Addresses {
		a := p.Addr()
		if a.Is4In6() {
			p = netip.PrefixFrom(a.Unmap(), max(p.Bits()-96, 0))
		}
		if p.IsValid() {
			ps = append(ps, p)
		}
	}
	l.Addresses = sortPrefixes(ps)
	c.local, c.dirtyNode = l, true
}

// holdsAlone tells whether the machine holds an address without a network
// around it, as those are bound that come and go with a Service.
func (l *Local) holdsAlone(a netip.Addr) bool {
	held, alone := false, true
	for _, p := range l.Addresses {
		if p.Addr() == a {
			held, alone = true, alone && p.IsSingleIP()
		}
	}
	return held && alone
}

func (c *Cache) buildNode(b *dataplane.Builder) bool {
	if !c.dirtyNode {
		return false
	}
	c.dirtyNode = false
	n := c.makeNode()
	if reflect.DeepEqual(n, c.snapshot.Node()) {
		return false
	}
	b.SetNode(n)
	return true
}

func (c *Cache) makeNode() *dataplane.Node {
	n := &dataplane.Node{
		Name:              c.NodeName,
		LoopbackNodePorts: c.nodePorts.loopback(c.local.LoopbackNodePorts),
		Detectors:         c.node.detectors,
		PodCIDRs:          c.node.podCIDRs,
		DropUnallocated:   c.DropUnallocated,
		Mark:              1 << c.MasqueradeBit,
		DropInvalid:       c.DropInvalid && !c.local.ConntrackLiberal,
	}
	for _, f := range dataplane.Families() {
		if a := *c.node.primary.of(f); a.IsValid() {
			n.PrimaryIPs = append(n.PrimaryIPs, a)
		}
	}
	for _, p := range c.local.Addresses {
		a := p.Addr()
		n.Addresses = append(n.Addresses, a)
		if c.nodePorts.selects(a, &c.node.primary) && !a.IsLoopback() && !c.onlyService(a) {
			n.NodePortAddrs = append(n.NodePortAddrs, a)
		}
	}
	n.Addresses, n.NodePortAddrs = sortAddrs(n.Addresses), sortAddrs(n.NodePortAddrs)
	for _, ps := range c.cidrs {
		n.ServiceCIDRs = append(n.ServiceCIDRs, ps...)
	}
	n.ServiceCIDRs = sortPrefixes(n.ServiceCIDRs)
	return n
}

// onlyService tells whether a local address is there for the sake of a Service
// alone: one lists it, the Node does not, and there is no network around it.
func (c *Cache) onlyService(a netip.Addr) bool {
	return c.serviceIPs[a] > 0 && !slices.Contains(c.node.addresses, a) && c.local.holdsAlone(a)
}
