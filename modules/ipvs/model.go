package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// model is what the kernel should hold, and which of it may differ from what
// it does hold: the sum of the fragments, whatever came before.
type model struct {
	translator
	frame frame

	ports   map[dataplane.ServicePortName]*dataplane.ServicePort
	servers map[kernel.Key]server
	// entries and locals count who wants them, clusterIPs who has them.
	entries    map[netfilter.SetChange]int
	locals     map[netip.Addr]int
	clusterIPs map[netip.Addr]int
	// fixed are the entries that no ServicePort wants.
	fixed map[netfilter.SetChange]bool

	dirty dirt
}

// dirt is what must be compared with the kernel. Of entries it says whether
// the kernel has them.
type dirt struct {
	servers map[kernel.Key]bool
	locals  map[netip.Addr]bool
	entries map[netfilter.SetChange]bool
	rules   bool
}

func newDirt() dirt {
	return dirt{
		servers: make(map[kernel.Key]bool), locals: make(map[netip.Addr]bool),
		entries: make(map[netfilter.SetChange]bool),
	}
}

// newModel is a model without Services, of a node.
func newModel(n *dataplane.Node, t translator, randomFully bool) *model {
	t.local = locality{netfilter.LocalityOf(n, t.family)}
	t.held = heldBy(n, t.family)
	m := &model{
		translator: t,
		frame:      newFrame(n, t.family, randomFully),
		ports:      make(map[dataplane.ServicePortName]*dataplane.ServicePort),
		servers:    make(map[kernel.Key]server),
		entries:    make(map[netfilter.SetChange]int),
		locals:     make(map[netip.Addr]int),
		clusterIPs: make(map[netip.Addr]int),
		dirty:      newDirt(),
	}
	m.dirty.rules = true
	return m
}

// fullModel is a model of all that a snapshot wants, to be compared with the kernel
// and never changed, and what of it cannot be programmed.
func fullModel(want *dataplane.Snapshot, t translator, randomFully bool) (*model, []dataplane.Failure) {
	m := newModel(want.Node(), t, randomFully)
	// Growing maps is most of what a large model costs.
	m.ports = make(map[dataplane.ServicePortName]*dataplane.ServicePort, want.Len())
	m.servers = make(map[kernel.Key]server, want.Len())
	m.entries = make(map[netfilter.SetChange]int, entriesOfPort*want.Len())
	m.dirty.entries = nil
	m.setFixed(fixedEntries(want, t.family))
	var failed []dataplane.Failure
	for sp := range want.ServicePorts() {
		if err := m.put(sp); err != nil {
			failed = append(failed, dataplane.Failure{Name: sp.Name, Err: err})
		}
	}
	return m, failed
}

// entriesOfPort is about how many entries of sets a ServicePort has.
const entriesOfPort = 4

func heldBy(n *dataplane.Node, f dataplane.Family) map[netip.Addr]bool {
	held := make(map[netip.Addr]bool)
	for _, a := range n.Addresses {
		if dataplane.FamilyOf(a) == f {
			held[a.WithZone("")] = true
		}
	}
	return held
}

// put adds a ServicePort or replaces its older version. It changes nothing if
// it fails, but for the older version, which is gone then.
func (m *model) put(sp *dataplane.ServicePort) error {
	m.remove(sp.Name)
	f, err := m.fragment(sp)
	if err != nil {
		return err
	}
	for _, s := range f.servers {
		if other, taken := m.servers[s.key]; taken {
			return fmt.Errorf("its virtual server %s belongs to %s", s.key, other.owner)
		}
	}
	m.ports[sp.Name] = sp
	for _, s := range f.servers {
		m.servers[s.key] = s
		m.dirty.servers[s.key] = true
	}
	m.countAll(f, 1)
	return nil
}

// remove takes a ServicePort out, if it is there.
func (m *model) remove(n dataplane.ServicePortName) {
	sp, ok := m.ports[n]
	if !ok {
		return
	}
	delete(m.ports, n)
	f, err := m.fragment(sp)
	if err != nil {
		return // it was put, so it has one
	}
	for _, s := range f.servers {
		delete(m.servers, s.key)
		m.dirty.servers[s.key] = true
	}
	m.countAll(f, -1)
}

func (m *model) countAll(f *fragment, by int) {
	for _, e := range f.entries {
		m.count(e, by)
	}
	for _, a := range f.locals {
		m.dirty.locals[a] = true
		addTo(m.locals, a, by)
	}
	for _, a := range f.clusterIPs {
		addTo(m.clusterIPs, a, by)
	}
}

func addTo(counts map[netip.Addr]int, a netip.Addr, by int) {
	if counts[a] += by; counts[a] == 0 {
		delete(counts, a)
	}
}

// count adds to those who want an entry.
func (m *model) count(e netfilter.SetChange, by int) {
	was := m.entries[e]
	if m.dirty.entries != nil && (was == 0 || was+by == 0) {
		if _, touched := m.dirty.entries[e]; !touched {
			m.dirty.entries[e] = was > 0
		}
	}
	if was+by == 0 {
		delete(m.entries, e)
	} else {
		m.entries[e] = was + by
	}
}

// setNode takes over what is new of the node. All Services are translated again
// only if it tells origins apart in another way, and those with a ClusterIP
// that the node holds from now on, or no longer.
func (m *model) setNode(n *dataplane.Node) []dataplane.Failure {
	fr := newFrame(n, m.family, m.frame.randomFully)
	fr.lenient, fr.yields = m.frame.lenient, m.frame.yields
	if !fr.equal(m.frame) {
		m.frame, m.dirty.rules = fr, true
	}
	l, held := locality{netfilter.LocalityOf(n, m.family)}, heldBy(n, m.family)
	relocated := !l.Equal(m.local.Locality)
	again := m.affectedByAddresses(held)
	if relocated {
		again = m.affected(func(*dataplane.ServicePort) bool { return true })
	}
	return m.retranslate(again, func() { m.local, m.held = l, held })
}

// affectedByAddresses are the ServicePorts for which it matters that other
// addresses are the node's own.
func (m *model) affectedByAddresses(held map[netip.Addr]bool) []*dataplane.ServicePort {
	changed := make(map[netip.Addr]bool)
	for _, pair := range [][2]map[netip.Addr]bool{{m.held, held}, {held, m.held}} {
		for a := range pair[0] {
			if !pair[1][a] && (m.clusterIPs[a] > 0 || m.locals[a] > 0) {
				changed[a] = true
			}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return m.affected(func(sp *dataplane.ServicePort) bool {
		return slices.ContainsFunc(sp.Frontends, func(f *dataplane.Frontend) bool {
			return f.Kind == dataplane.ClusterIP && changed[f.Addr] || changed[aliasOf(f.Key(0).Addr, false)]
		})
	})
}

func (m *model) affected(is func(*dataplane.ServicePort) bool) []*dataplane.ServicePort {
	var ports []*dataplane.ServicePort
	for _, sp := range m.ports {
		if is(sp) {
			ports = append(ports, sp)
		}
	}
	slices.SortFunc(ports, func(a, b *dataplane.ServicePort) int { return a.Name.Compare(b.Name) })
	return ports
}

// retranslate takes ServicePorts out, changes how they are translated, and
// puts them in again.
func (m *model) retranslate(ports []*dataplane.ServicePort, change func()) []dataplane.Failure {
	for _, sp := range ports {
		m.remove(sp.Name)
	}
	change()
	var failed []dataplane.Failure
	for _, sp := range ports {
		if err := m.put(sp); err != nil {
			failed = append(failed, dataplane.Failure{Name: sp.Name, Err: err})
		}
	}
	return failed
}

// begin makes the rules those of a start: they refuse only what Services themselves
// refuse, and yield where another proxy translates.
func (m *model) begin(yields bool) {
	m.frame.lenient, m.frame.yields, m.dirty.rules = true, yields, true
}

// complete makes them whole.
func (m *model) complete() { m.frame.lenient, m.frame.yields, m.dirty.rules = false, false, true }

// forgetScheduler translates the ServicePorts again that wish for a scheduler
// which the kernel does not have.
func (m *model) forgetScheduler(name string) []dataplane.Failure {
	wish := func(sp *dataplane.ServicePort) bool { return sp.Scheduler == name }
	return m.retranslate(m.affected(wish), func() { m.unknown[name] = true })
}

// setFixed replaces the entries that do not come from ServicePorts.
func (m *model) setFixed(want map[netfilter.SetChange]bool) {
	for e := range m.fixed {
		if !want[e] {
			m.count(e, -1)
		}
	}
	for e := range want {
		if !m.fixed[e] {
			m.count(e, 1)
		}
	}
	m.fixed = want
}

// fixedEntries come from no ServicePort.
func fixedEntries(s *dataplane.Snapshot, f dataplane.Family) map[netfilter.SetChange]bool {
	return netfilter.FixedEntries(s, f, setNodeIP.empty(f), setIgnored.empty(f), setHealth.empty(f))
}

// sameFixed tells whether two snapshots give the same fixed entries for sure.
func sameFixed(a, b *dataplane.Snapshot) bool {
	for range a.IgnoredChangesSince(b) {
		return false
	}
	return a.Node() == b.Node() && a.HealthChecksEqual(b)
}

// wantSets are all sets with all entries, for a comparison with the kernel.
func (m *model) wantSets() []netfilter.Set {
	at := make(map[string]int)
	all := make([]netfilter.Set, len(sets()))
	for i, s := range sets() {
		at[s.name(m.family)], all[i] = i, s.empty(m.family)
	}
	sizes := make([]int, len(all))
	for e := range m.entries {
		sizes[at[e.Set]]++
	}
	for i := range all {
		all[i].Entries = make([]netfilter.SetEntry, 0, sizes[i])
	}
	for e := range m.entries {
		s := &all[at[e.Set]]
		s.Entries = append(s.Entries, e.Entry)
	}
	for i := range all {
		slices.SortFunc(all[i].Entries, compareEntries)
	}
	return all
}

// dirtySets are the changes to sets since the kernel was last equal.
func (m *model) dirtySets() netfilter.SetPlan {
	var p netfilter.SetPlan
	for e, there := range m.dirty.entries {
		switch wanted := m.entries[e] > 0; {
		case wanted && !there:
			p.Add = append(p.Add, e)
		case there && !wanted:
			p.Remove = append(p.Remove, e)
		}
	}
	return p
}

// allDirty makes all virtual servers and addresses a matter of comparison.
func (m *model) allDirty() {
	m.dirty.rules = true
	for k := range m.servers {
		m.dirty.servers[k] = true
	}
	for a := range m.locals {
		m.dirty.locals[a] = true
	}
}

// keys are the virtual servers to be compared, in an order that depends on
// nothing else.
func (d *dirt) keys() []kernel.Key {
	return slices.SortedFunc(maps.Keys(d.servers), kernel.Key.Compare)
}

// aliases are those that must be compared, and clusterIPs the other addresses.
func (d *dirt) aliases() []netip.Addr { return d.addresses(true) }

func (d *dirt) clusterIPs() []netip.Addr { return d.addresses(false) }

func (d *dirt) addresses(aliases bool) []netip.Addr {
	all := slices.SortedFunc(maps.Keys(d.locals), netip.Addr.Compare)
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return isAlias(a) != aliases })
}
