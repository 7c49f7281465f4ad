package servicecache

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// entry is everything known of one Service name.
type entry struct {
	name   dataplane.ServiceName
	spec   *service // nil: there are slices only
	slices []*slice // sorted by name
	claims []claim  // never grows: the index points into it
	dirty  bool     // to be evaluated by the next Build
	// What the last snapshot holds.
	ports    []*dataplane.ServicePort
	health   dataplane.HealthCheck
	problems []Problem
}

func (e *entry) findSlice(name string) (int, bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *slice, n string) int { return cmp.Compare(s.name.name, n) })
}

func (e *entry) putSlice(s *slice) {
	i, found := e.findSlice(s.name.name)
	if found {
		e.slices[i] = s
		return
	}
	e.slices = slices.Insert(e.slices, i, s)
}

func (e *entry) removeSlice(name string) {
	if i, found := e.findSlice(name); found {
		e.slices = slices.Delete(e.slices, i, i+1)
	}
}

func (e *entry) empty() bool { return e.spec == nil && len(e.slices) == 0 }

// portName names one of the Service's ports.
func (e *entry) portName(i int) dataplane.ServicePortName {
	p := e.spec.ports[i]
	return dataplane.ServicePortName{Namespace: e.name.Namespace, Name: e.name.Name, Port: p.name, Protocol: p.protocol}
}

// evaluation is the making of the ServicePorts of one entry.
type evaluation struct {
	c        *Cache
	e        *entry
	sources  byFamily[*dataplane.SourceRanges]
	local    byFamily[map[netip.Addr]bool] // addresses that count for health
	problems problems
}

// evaluate makes an entry's ServicePorts and HealthCheck anew.
func (c *Cache) evaluate(e *entry) (ports []*dataplane.ServicePort, h dataplane.HealthCheck, found []Problem) {
	s := e.spec
	if s == nil || s.ignored {
		return nil, h, nil
	}
	v := &evaluation{c: c, e: e, problems: problems{object: s.object}}
	for _, f := range s.families() {
		*v.sources.of(f) = c.sources(s, f)
		if s.healthPort != 0 {
			*v.local.of(f) = make(map[netip.Addr]bool)
		}
	}
	next := e.claims
	for i := range s.ports {
		n := 0
		for n < len(next) && next[n].port == i {
			n++
		}
		if sp := v.port(i, next[:n]); len(sp.Frontends) > 0 {
			ports = append(ports, sp)
		}
		next = next[n:]
	}
	if s.healthPort != 0 {
		h = dataplane.HealthCheck{
			Port:    s.healthPort,
			Serves4: v.local.v4 != nil, Serves6: v.local.v6 != nil,
			LocalReady4: len(v.local.v4), LocalReady6: len(v.local.v6),
		}
	}
	return ports, h, v.problems.list
}

// sources gives a Service's source ranges for one family. The node's own flows
// are judged by its address in the API, whatever source the kernel picks.
func (c *Cache) sources(s *service, f dataplane.Family) *dataplane.SourceRanges {
	if s.sources == nil {
		return nil
	}
	r := &dataplane.SourceRanges{Prefixes: *s.sources.of(f)}
	node := *c.node.primary.of(f)
	r.Node = node.IsValid() && slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return p.Contains(node) })
	return r
}

func (v *evaluation) port(i int, wanted []claim) *dataplane.ServicePort {
	s := v.e.spec
	sp := &dataplane.ServicePort{
		Name: v.e.portName(i), Priority: s.priority, Affinity: s.affinity, Scheduler: s.scheduler,
		Frontends: make([]*dataplane.Frontend, 0, len(wanted)),
	}
	var policies byFamily[*policy]
	for _, f := range s.families() {
		*policies.of(f) = v.policy(sp, s.ports[i], f)
	}
	for j := range wanted {
		cl := &wanted[j]
		if winner := v.c.claims[cl.key]; winner != cl {
			v.lost(cl, winner)
			continue
		}
		f := dataplane.FamilyOf(cl.key.Addr)
		sp.Frontends = append(sp.Frontends, v.frontend(cl, f, *policies.of(f)))
	}
	sp.Pools = usedPools(sp.Frontends)
	old := slices.IndexFunc(v.e.ports, func(o *dataplane.ServicePort) bool { return o.Name == sp.Name })
	if old < 0 {
		return sp
	}
	return keepIdentity(v.e.ports[old], sp)
}

// policy joins the endpoints of one port and family.
func (v *evaluation) policy(sp *dataplane.ServicePort, port servicePort, f dataplane.Family) *policy {
	s, c := v.e.spec, v.c
	c.scratch = join(v.e.slices, port, f, c.scratch[:0])
	sp.Serving = serving(c.scratch, sp.Serving)
	if s.healthPort != 0 {
		localReady(*v.local.of(f), c.scratch)
	}
	p := &policy{
		internalLocal: s.internalLocal, externalLocal: s.externalLocal,
		detects: *c.node.detects.of(f), masqueradeAll: c.MasqueradeAll, dropEmptyLocal: c.DropEmptyLocal,
		cluster: pool(c.scratch, f, dataplane.Cluster, c.node.zone),
	}
	if s.internalLocal || s.externalLocal {
		p.local = pool(c.scratch, f, dataplane.Local, "")
	}
	return p
}

func (v *evaluation) frontend(cl *claim, f dataplane.Family, p *policy) *dataplane.Frontend {
	fe := &dataplane.Frontend{Kind: cl.kind, Family: f, Port: cl.key.Port, Routes: p.routes(cl.kind)}
	if cl.kind != dataplane.NodePort {
		fe.Addr = cl.key.Addr
	}
	if cl.kind == dataplane.LoadBalancerIP {
		fe.Sources = *v.sources.of(f)
	}
	return fe
}

func (v *evaluation) lost(cl, winner *claim) {
	field := [...]string{"spec.clusterIPs", "status.loadBalancer.ingress", "spec.externalIPs", "spec.ports.nodePort"}[cl.kind]
	by := winner.owner.portName(winner.port).String() + " as " + winner.kind.String()
	v.problems.add(AddressConflict, field, cl.kind.String()+" "+cl.key.String()+" is not served: "+by+" has it")
}

// usedPools lists the pools that some route refers to, Cluster before Local
// and IPv4 before IPv6.
func usedPools(fs []*dataplane.Frontend) []*dataplane.Pool {
	var used []*dataplane.Pool
	for _, f := range fs {
		for _, r := range f.Routes {
			if r.Pool != nil && !slices.Contains(used, r.Pool) {
				used = append(used, r.Pool)
			}
		}
	}
	slices.SortFunc(used, func(a, b *dataplane.Pool) int {
		if c := cmp.Compare(a.Family, b.Family); c != 0 {
			return c
		}
		return cmp.Compare(a.Scope, b.Scope)
	})
	return used
}
