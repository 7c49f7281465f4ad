package servicecache

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/portway/portway/modules/dataplane"
)

// What follows exchanges all objects of a kind. Equal ones change nothing.

func (c *Cache) replaceServices(list []*service) {
	there := make(map[dataplane.ServiceName]bool, len(list))
	for _, s := range list {
		there[s.name] = true
		c.setService(s)
	}
	for n := range c.entries {
		if !there[n] {
			c.DeleteService(n)
		}
	}
}

func (c *Cache) replaceSlices(list []namedSlice) {
	there := make(map[sliceName]bool, len(list))
	for _, s := range list {
		there[s.name] = true
		s.set(c)
	}
	for n := range c.slices {
		if !there[n] {
			c.deleteSlice(n)
		}
	}
}

// namedSlice is an EndpointSlice that may be of no interest (any more).
type namedSlice struct {
	name  sliceName
	slice *slice
}

func (s namedSlice) set(c *Cache) {
	if s.slice == nil {
		c.deleteSlice(s.name)
		return
	}
	c.setSlice(s.slice)
}

// namedFacts are those of a Node, which may be another one's.
type namedFacts struct {
	name  string
	facts nodeFacts
}

func (n namedFacts) set(c *Cache) {
	if n.name == c.NodeName {
		c.setNodeFacts(n.facts)
	}
}

func (c *Cache) replaceNodes(list []namedFacts) {
	c.DeleteNode(c.NodeName)
	for _, n := range list {
		n.set(c)
	}
}

// namedCIDRs are those of a ServiceCIDR.
type namedCIDRs struct {
	name  string
	cidrs []netip.Prefix
}

func readCIDRs(o *networkingv1.ServiceCIDR) namedCIDRs {
	n := namedCIDRs{name: o.Name}
	for _, text := range o.Spec.CIDRs {
		if p, err := parsePrefix(text); err == nil {
			n.cidrs = append(n.cidrs, p)
		}
	}
	return n
}

func (n namedCIDRs) set(c *Cache) {
	c.cidrs[n.name] = n.cidrs
	c.dirtyNode = true
}

func (c *Cache) replaceCIDRs(list []namedCIDRs) {
	clear(c.cidrs)
	c.dirtyNode = true
	for _, n := range list {
		n.set(c)
	}
}
