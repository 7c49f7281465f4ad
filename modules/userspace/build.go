package userspace

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// wish is what the kernel should hold.
type wish struct {
	chains map[chainID][]netfilter.Rule
	owners map[chainID]dataplane.ServicePortName
	sets   []netfilter.Set // sorted by name
}

// builder translates a snapshot. It takes no decision: which endpoints and which
// answer stands in the frontends' routes.
type builder struct {
	family   dataplane.Family
	node     *dataplane.Node
	detector dataplane.Detector
	hasPods  bool
	// listener says where a pool's flows are taken; false if nowhere.
	listener func(poolKey) (netip.AddrPort, bool)

	wish    wish
	entries map[set]map[netfilter.SetEntry]bool
}

// build is a pure function of the snapshot and the listeners.
func build(s *dataplane.Snapshot, f dataplane.Family, listener func(poolKey) (netip.AddrPort, bool)) wish {
	b := &builder{family: f, node: s.Node(), listener: listener, entries: make(map[set]map[netfilter.SetEntry]bool)}
	b.wish = wish{chains: make(map[chainID][]netfilter.Rule), owners: make(map[chainID]dataplane.ServicePortName)}
	b.detector, b.hasPods = s.Node().Detector(f)
	for _, sp := range byName(s) {
		b.pools(sp)
		for _, fe := range sp.Frontends {
			if fe.Family == f {
				b.frontend(sp, fe)
			}
		}
	}
	b.fixedEntries(s)
	b.roots()
	b.collectSets()
	return b.wish
}

// byName lists ServicePorts so that equal snapshots give equal rules.
func byName(s *dataplane.Snapshot) []*dataplane.ServicePort {
	return slices.SortedFunc(s.ServicePorts(), func(a, b *dataplane.ServicePort) int { return a.Name.Compare(b.Name) })
}

func (b *builder) add(t netfilter.Table, chain string, rules ...netfilter.Rule) {
	id := chainID{t, chain}
	b.wish.chains[id] = append(b.wish.chains[id], rules...)
}

// own adds a rule to a chain of one ServicePort.
func (b *builder) own(sp *dataplane.ServicePort, t netfilter.Table, chain string, rules ...netfilter.Rule) {
	b.add(t, chain, rules...)
	b.wish.owners[chainID{t, chain}] = sp.Name
}

func (b *builder) enter(s set, e netfilter.SetEntry) {
	if b.entries[s] == nil {
		b.entries[s] = make(map[netfilter.SetEntry]bool)
	}
	b.entries[s][e] = true
}

// pools adds the chain of each pool that has a listener.
func (b *builder) pools(sp *dataplane.ServicePort) {
	for k := range poolsInUse(sp, b.family) {
		at, ok := b.listener(k)
		if !ok {
			continue
		}
		b.own(sp, netfilter.NAT, k.chain(), netfilter.Rule{
			Protocol: netfilter.Is(sp.Name.Protocol), Comment: comment(sp.Name), Target: netfilter.DNAT(at),
		})
		b.enter(setListener.of(sp.Name.Protocol), netfilter.SetEntry{Port: at.Port()})
	}
}

// poolsInUse yields the pools to which a frontend of the family forwards.
func poolsInUse(sp *dataplane.ServicePort, f dataplane.Family) map[poolKey]*dataplane.Pool {
	used := make(map[poolKey]*dataplane.Pool)
	for _, fe := range sp.Frontends {
		for _, r := range fe.Routes {
			if fe.Family == f && r.Action == dataplane.Forward {
				used[poolKey{sp.Name, r.Pool.Scope}] = r.Pool
			}
		}
	}
	return used
}

// frontend adds the rules that lead to pools in nat, and those in filter that
// refuse in another way than usual what nat did not translate.
func (b *builder) frontend(sp *dataplane.ServicePort, f *dataplane.Frontend) {
	w := &frontendWriter{builder: b, sp: sp, f: f, key: f.Key(sp.Name.Protocol)}
	w.match = netfilter.Rule{Protocol: netfilter.Is(sp.Name.Protocol), DestPort: netfilter.Port(f.Port), Comment: comment(sp.Name)}
	w.come, w.host = chainNodePort, chainNodePortHost
	if f.Kind == dataplane.NodePort {
		b.enter(setNodePort.of(sp.Name.Protocol), netfilter.SetEntry{Port: f.Port})
	} else {
		w.match.Destination = netfilter.MatchAddr(f.Addr)
		w.come, w.host = bucket(chainPortals, f.Addr), bucket(chainPortalsHost, f.Addr)
		e := addrEntry(f.Addr)
		if f.Kind == dataplane.ClusterIP {
			b.enter(setClusterIP, e)
		}
		e.Protocol, e.Port = sp.Name.Protocol, f.Port
		b.enter(setFrontend, e)
	}
	w.redirect()
	w.refuse()
}

func addrEntry(a netip.Addr) netfilter.SetEntry {
	return netfilter.SetEntry{Net: netip.PrefixFrom(a, a.BitLen())}
}

// comment names the ServicePort.
func comment(n dataplane.ServicePortName) string {
	text := n.Service().String()
	if n.Port != "" {
		text += ":" + n.Port
	}
	return netfilter.Comment(text)
}

// frontendWriter translates one frontend.
type frontendWriter struct {
	*builder
	sp    *dataplane.ServicePort
	f     *dataplane.Frontend
	key   dataplane.FrontendKey
	match netfilter.Rule
	// come and host are the chains, of both tables, for flows that come to this
	// node and for its own. So no rule need ask whether a source is the node.
	come, host string
}

func (w *frontendWriter) rule(with netfilter.Rule, t netfilter.Target) netfilter.Rule {
	r := w.match
	r.Source, r.In, r.Target = with.Source, with.In, t
	return r
}

// route is what happens to an origin; where nobody is a pod, pods are others.
func (w *frontendWriter) route(o dataplane.Origin) dataplane.Route {
	if o == dataplane.FromPod && !w.hasPods {
		o = dataplane.FromOutside
	}
	return w.f.Routes[o]
}

// target is where a route goes in nat: to a pool, or on, untranslated, to the
// filter table, which refuses.
func (w *frontendWriter) target(r dataplane.Route) netfilter.Target {
	if r.Action == dataplane.Forward {
		k := poolKey{w.sp.Name, r.Pool.Scope}
		if _, ok := w.listener(k); ok {
			return netfilter.Jump(k.chain())
		}
	}
	return netfilter.Accept()
}

// redirect adds the rules of nat.
func (w *frontendWriter) redirect() {
	pod, outside := w.target(w.route(dataplane.FromPod)), w.target(w.route(dataplane.FromOutside))
	host := w.target(w.route(dataplane.FromNode))
	if s := w.f.Sources; s != nil {
		w.add(netfilter.NAT, w.come, w.rule(netfilter.Rule{}, netfilter.Jump(w.sources(netfilter.NAT, netfilter.Accept()))))
		if !s.Node {
			host = netfilter.Accept()
		}
	}
	if pod != outside {
		w.add(netfilter.NAT, w.come, w.rule(netfilter.FromPods(w.detector), pod))
	}
	w.add(netfilter.NAT, w.come, w.rule(netfilter.Rule{}, outside))
	w.add(netfilter.NAT, w.host, w.rule(netfilter.Rule{}, host))
}

// sources is the chain that comes back for allowed sources, and has another end
// for the rest.
func (w *frontendWriter) sources(t netfilter.Table, end netfilter.Target) string {
	name := sourcesChain(w.sp.Name, w.key)
	for _, p := range w.f.Sources.Prefixes {
		w.own(w.sp, t, name, netfilter.Rule{Source: netfilter.MatchPrefix(p), Target: netfilter.Return()})
	}
	w.own(w.sp, t, name, netfilter.Rule{Target: end})
	return name
}

// refuse adds the rules of filter, where the sets that reject are not the
// answer.
func (w *frontendWriter) refuse() {
	pod, outside := w.answer(dataplane.FromPod), w.answer(dataplane.FromOutside)
	if w.f.Sources != nil {
		w.add(netfilter.Filter, w.come, w.rule(netfilter.Rule{}, netfilter.Jump(w.sources(netfilter.Filter, netfilter.Drop()))))
	}
	if pod != outside {
		w.add(netfilter.Filter, w.come, w.rule(netfilter.FromPods(w.detector), pod))
	}
	if outside == netfilter.Drop() {
		w.add(netfilter.Filter, w.come, w.rule(netfilter.Rule{}, outside))
	}
	if w.answer(dataplane.FromNode) == netfilter.Drop() || w.f.Sources != nil && !w.f.Sources.Node {
		w.add(netfilter.Filter, w.host, w.rule(netfilter.Rule{}, netfilter.Drop()))
	}
}

// answer is what untranslated flows of an origin get. One that should have been
// forwarded is rejected: its pool has no listener.
func (w *frontendWriter) answer(o dataplane.Origin) netfilter.Target {
	if w.route(o).Action == dataplane.Drop {
		return netfilter.Drop()
	}
	return netfilter.Jump(chainReject)
}

// fixedEntries come from no ServicePort.
func (b *builder) fixedEntries(s *dataplane.Snapshot) {
	enter := func(in set, a netip.Addr) {
		if dataplane.FamilyOf(a) == b.family {
			b.enter(in, addrEntry(a.WithZone("")))
		}
	}
	for _, a := range b.node.NodePortAddrs {
		enter(setNodeIP, a)
	}
	for a := range s.Ignored() {
		enter(setIgnored, a)
	}
	for _, h := range s.HealthChecks() {
		if h.Port != 0 {
			b.enter(setHealth, netfilter.SetEntry{Port: h.Port})
		}
	}
}

func (b *builder) collectSets() {
	for _, s := range allSets() {
		made := s.empty(b.family)
		made.Entries = slices.SortedFunc(maps.Keys(b.entries[s]), compareEntries)
		b.wish.sets = append(b.wish.sets, made)
	}
	slices.SortFunc(b.wish.sets, func(a, c netfilter.Set) int { return strings.Compare(a.Name, c.Name) })
}
