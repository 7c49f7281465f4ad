package servicecache

import (
	"cmp"

	"github.com/portway/portway/modules/dataplane"
)

// claim is the wish of one Service port for one address and port.
type claim struct {
	key   dataplane.FrontendKey
	kind  dataplane.Kind
	port  int // index in the Service's ports
	owner *entry
	next  *claim // the best of those that lose against this one
}

// compare orders rivals; the lower one wins.
func (c *claim) compare(o *claim) int {
	if d := cmp.Compare(c.kind, o.kind); d != 0 {
		return d
	}
	if d := cmp.Compare(c.owner.spec.created, o.owner.spec.created); d != 0 {
		return d
	}
	if d := c.owner.name.Compare(o.owner.name); d != 0 {
		return d
	}
	return cmp.Compare(c.port, o.port)
}

// claims hold for each address and port those who want it, the winner first.
// Nearly every list has a length of one.
type claims map[dataplane.FrontendKey]*claim

// insert adds a claim and returns the owner of the one that it drives out.
func (cs claims) insert(c *claim) *entry {
	head := cs[c.key]
	if head == nil || c.compare(head) < 0 {
		c.next = head
		cs[c.key] = c
		if head != nil {
			return head.owner
		}
		return nil
	}
	at := head
	for at.next != nil && at.next.compare(c) < 0 {
		at = at.next
	}
	c.next, at.next = at.next, c
	return nil
}

// remove takes a claim away and returns the owner of the one that moves up.
func (cs claims) remove(c *claim) *entry {
	at := cs[c.key]
	if at == c {
		if c.next == nil {
			delete(cs, c.key)
			return nil
		}
		cs[c.key] = c.next
		return c.next.owner
	}
	for at.next != c {
		at = at.next
	}
	at.next = c.next
	return nil
}

// claim lists what a Service wants, in the order in which its frontends are
// listed.
func (e *entry) claim() []claim {
	s := e.spec
	if s == nil || s.ignored {
		return nil
	}
	families := s.families()
	list := make([]claim, 0, len(s.ports)*(2*len(families)+len(s.lbIPs)+len(s.externalIPs)))
	for i, p := range s.ports {
		want := func(k dataplane.Kind, f dataplane.Frontend) {
			f.Kind = k
			list = append(list, claim{key: f.Key(p.protocol), kind: k, port: i, owner: e})
		}
		for _, f := range families {
			want(dataplane.ClusterIP, dataplane.Frontend{Addr: *s.clusterIPs.of(f), Port: p.port})
		}
		for _, a := range s.lbIPs {
			want(dataplane.LoadBalancerIP, dataplane.Frontend{Addr: a, Port: p.port})
		}
		for _, a := range s.externalIPs {
			want(dataplane.ExternalIP, dataplane.Frontend{Addr: a, Port: p.port})
		}
		if p.nodePort == 0 {
			continue
		}
		for _, f := range families {
			want(dataplane.NodePort, dataplane.Frontend{Family: f, Port: p.nodePort})
		}
	}
	return list
}
