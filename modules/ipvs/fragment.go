package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// A fragment is everything that one ServicePort needs in the kernel. It
// depends on nothing but the ServicePort and the translator.
type fragment struct {
	name    dataplane.ServicePortName
	entries []netfilter.SetChange
	servers []server
	// locals are addresses that must be local to this node.
	locals []netip.Addr
	// clusterIPs are the ServicePort's, local or not.
	clusterIPs []netip.Addr
}

// server is a virtual server as it is wanted.
type server struct {
	key   kernel.Key
	owner dataplane.ServicePortName
	how   kernel.Server
	// pool is nil if the frontend refuses. Then there is no virtual server,
	// unless it has real servers that drain.
	pool *dataplane.Pool
	// drains: real servers that leave keep their connections for a while,
	// because IPVS sees each of their packets. Behind an alias it sees only the
	// first, and conntrack keeps the others.
	drains bool
}

// translator makes fragments for one family.
type translator struct {
	family dataplane.Family
	local  locality
	// scheduler is for ServicePorts without a wish.
	scheduler string
	// unknown are schedulers that the kernel does not have.
	unknown map[string]bool
	// held are the node's own addresses; they are never made local by us.
	held map[netip.Addr]bool
}

// fragment translates a ServicePort. It takes no decision: which endpoints,
// which answer and which masquerade stands in the frontends' routes.
func (t *translator) fragment(sp *dataplane.ServicePort) (*fragment, error) {
	w := &writer{translator: t, sp: sp, out: &fragment{name: sp.Name, entries: make([]netfilter.SetChange, 0, entriesOfPort*len(sp.Frontends))}}
	for _, f := range sp.Frontends {
		if f.Family != t.family {
			continue
		}
		if err := w.frontend(f); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(w.out.servers, func(a, b server) int { return a.key.Compare(b.key) })
	return w.out, nil
}

// how is the way in which the ServicePort's virtual servers balance.
func (t *translator) how(sp *dataplane.ServicePort) kernel.Server {
	how := kernel.Server{Scheduler: sp.Scheduler, Persist: roundUp(sp.Affinity)}
	if how.Scheduler == "" || t.unknown[how.Scheduler] {
		how.Scheduler = t.scheduler
	}
	if how.Scheduler == "mh" {
		how.Flags = kernel.HashPort // kubernetes#114305
	}
	return how
}

// roundUp rounds up to seconds, which is what the kernel counts.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// writer translates one ServicePort into its fragment.
type writer struct {
	*translator
	sp  *dataplane.ServicePort
	out *fragment
}

func (w *writer) enter(s set, e netfilter.SetEntry) {
	if c := s.entry(w.family, e); !slices.Contains(w.out.entries, c) {
		w.out.entries = append(w.out.entries, c)
	}
}

func (w *writer) addrPort(f *dataplane.Frontend) netfilter.SetEntry {
	e := netfilter.AddrEntry(f.Addr)
	e.Protocol, e.Port = w.sp.Name.Protocol, f.Port
	return e
}

func (w *writer) frontend(f *dataplane.Frontend) error {
	s, err := w.local.shapeOf(f)
	if err != nil {
		return err
	}
	if f.Kind == dataplane.NodePort {
		return w.nodePort(f, s)
	}
	w.enter(setFrontend, w.addrPort(f))
	if f.Kind == dataplane.ClusterIP {
		w.out.clusterIPs = append(w.out.clusterIPs, f.Addr)
	}
	if f.Kind == dataplane.ClusterIP && !w.held[f.Addr] {
		w.makeLocal(f.Addr)
		w.enter(setIPs, netfilter.AddrEntry(f.Addr))
	}
	w.sources(f)
	switch {
	case s.refuse == dataplane.Drop:
		w.enter(setDrop, w.addrPort(f))
	case s.refuse == dataplane.Reject:
		w.enter(setReject, w.addrPort(f))
	}
	switch {
	case f.Kind != dataplane.ClusterIP:
		return w.external(f, s)
	case w.held[f.Addr]:
		return w.heldIP(f, s)
	}
	w.serve(kernel.Key{Protocol: w.sp.Name.Protocol, Addr: f.Addr, Port: f.Port}, s.inside, true)
	w.clusterIP(f, s)
	return nil
}

// clusterIP says who is masqueraded at a ClusterIP.
func (w *writer) clusterIP(f *dataplane.Frontend, s shape) {
	if s.inside == nil {
		return
	}
	w.enter(setClusterIP, w.addrPort(f))
	if s.everyone {
		w.enter(setMasquerade, w.addrPort(f))
	}
}

// heldIP serves a ClusterIP that the node has on a device of somebody else,
// such as NodeLocal DNSCache: nothing but the Service's port is taken, and what
// is not tracked goes to the node itself, as with every other mode.
func (w *writer) heldIP(f *dataplane.Frontend, s shape) error {
	if s.inside == nil {
		return nil
	}
	w.clusterIP(f, s)
	w.enter(setHeld, w.addrPort(f))
	return w.serveAlias(aliasOf(f.Addr, false), f.Port, s.inside)
}

// external serves an address from outside of the cluster through its aliases.
func (w *writer) external(f *dataplane.Frontend, s shape) error {
	if s.inside == nil {
		return nil
	}
	base, local := setExternal, setExternalL
	if f.Kind == dataplane.LoadBalancerIP {
		base, local = setBalancer, setBalancerL
	}
	w.enter(base, w.addrPort(f))
	if s.split {
		w.enter(local, w.addrPort(f))
		if s.outside == nil {
			w.enter(setDropOutside, w.addrPort(f))
		} else if err := w.serveAlias(aliasOf(f.Addr, true), f.Port, s.outside); err != nil {
			return err
		}
	}
	return w.serveAlias(aliasOf(f.Addr, false), f.Port, s.inside)
}

// nodePort serves all NodePort addresses through one alias.
func (w *writer) nodePort(f *dataplane.Frontend, s shape) error {
	p, port := w.sp.Name.Protocol, netfilter.SetEntry{Port: f.Port}
	switch {
	case f.Sources != nil:
		return fmt.Errorf("NodePort %d has source ranges, which the ipvs mode has no rules for", f.Port)
	case s.refuse == dataplane.Reject:
		w.enter(setNodePortReject.of(p), port)
		return nil
	case s.inside == nil:
		return fmt.Errorf("NodePort %d drops everybody, which the ipvs mode has no rules for", f.Port)
	}
	w.enter(setNodePort.of(p), port)
	if s.split {
		w.enter(setNodePortL.of(p), port)
		if s.outside == nil {
			w.enter(setNodePortOutside.of(p), port)
		} else if err := w.serveAlias(nodePortAlias(w.family, true), f.Port, s.outside); err != nil {
			return err
		}
	}
	return w.serveAlias(nodePortAlias(w.family, false), f.Port, s.inside)
}

// sources puts source ranges into sets.
func (w *writer) sources(f *dataplane.Frontend) {
	if f.Sources == nil {
		return
	}
	w.enter(setFirewall, w.addrPort(f))
	if !f.Sources.Node {
		w.enter(setDenyNode, w.addrPort(f))
	}
	for _, p := range netfilter.OfFamily(f.Sources.Prefixes, w.family) {
		for _, half := range halves(p) {
			e := w.addrPort(f)
			e.SecondNet = half
			w.enter(setSources, e)
		}
	}
}

// halves cuts a prefix of length 0, which no set can hold.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() != 0 {
		return []netip.Prefix{p}
	}
	upper := p.Addr().AsSlice()
	upper[0] = 0x80
	a, _ := netip.AddrFromSlice(upper) // as long as before
	return []netip.Prefix{netip.PrefixFrom(p.Addr(), 1), netip.PrefixFrom(a, 1)}
}

func (w *writer) makeLocal(a netip.Addr) {
	if !slices.Contains(w.out.locals, a) {
		w.out.locals = append(w.out.locals, a)
	}
}

func (w *writer) serveAlias(alias netip.Addr, port uint16, p *dataplane.Pool) error {
	if err := checkAlias(alias); err != nil {
		return err
	}
	if w.held[alias] {
		return errors.New("its alias " + alias.String() + " is an address of this node")
	}
	w.makeLocal(alias)
	w.enter(setAlias, netfilter.AddrEntry(alias))
	w.serve(kernel.Key{Protocol: w.sp.Name.Protocol, Addr: alias, Port: port}, p, false)
	return nil
}

// serve wants a virtual server. What it forwards may come from the endpoint
// itself, which is masqueraded then (kubernetes#20475); that is for all
// endpoints, so that it does not matter which node they are said to be on.
func (w *writer) serve(k kernel.Key, p *dataplane.Pool, direct bool) {
	w.out.servers = append(w.out.servers, server{
		key: k, owner: w.sp.Name, how: w.how(w.sp), pool: p, drains: direct && k.Protocol == dataplane.TCP,
	})
	if p == nil {
		return
	}
	for _, e := range p.Endpoints {
		entry := netfilter.AddrEntry(e.Addr.Addr())
		entry.Protocol, entry.Port, entry.Second = k.Protocol, e.Addr.Port(), e.Addr.Addr()
		w.enter(setLoopBack, entry)
	}
}
