package iptables

import (
	"fmt"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// model is what the kernel should hold, and which of it may differ from what
// it does hold. Rules of chains that one ServicePort owns are kept only until
// they are written: translating it again gives them back.
type model struct {
	translator
	frame frame

	ports  map[dataplane.ServicePortName]*dataplane.ServicePort
	owners map[chainID]dataplane.ServicePortName
	// shared holds the rules of chains that many ServicePorts share, sorted by
	// frontend.
	shared map[chainID][]sharedRule
	// entries counts who wants each entry of a shared set.
	entries map[netfilter.SetChange]int
	// fixed are the entries that no ServicePort wants.
	fixed map[netfilter.SetChange]bool
	sets  map[string]netfilter.Set // affinity sets

	dirty dirt
}

// dirt is what must be compared with the kernel.
type dirt struct {
	// own chains with their rules; nil for one that must go.
	own    map[chainID][]netfilter.Rule
	shared map[chainID]bool
	// entries and sets with what the kernel has of them.
	entries map[netfilter.SetChange]presence
	sets    map[string]presence
}

// presence is whether the kernel has something.
type presence uint8

const (
	unknown presence = iota // a change may have been made or not
	absent
	present
)

func presenceOf(there bool) presence {
	if there {
		return present
	}
	return absent
}

// differs tells whether something must be written, to be sure.
func (p presence) differs(wanted bool) bool { return p != presenceOf(wanted) }

// doubt is for a write that failed: sets may be as they were, or not.
func (d *dirt) doubt() {
	for e := range d.entries {
		d.entries[e] = unknown
	}
	for s := range d.sets {
		d.sets[s] = unknown
	}
}

func newDirt() dirt {
	return dirt{
		own: make(map[chainID][]netfilter.Rule), shared: make(map[chainID]bool),
		entries: make(map[netfilter.SetChange]presence), sets: make(map[string]presence),
	}
}

// newModel is a model without Services, of a node.
func newModel(n *dataplane.Node, f dataplane.Family, randomFully bool) *model {
	m := &model{
		translator: translator{f, newLocality(n, f)},
		frame:      newFrame(n, f, randomFully),
		ports:      make(map[dataplane.ServicePortName]*dataplane.ServicePort),
		owners:     make(map[chainID]dataplane.ServicePortName),
		shared:     make(map[chainID][]sharedRule),
		entries:    make(map[netfilter.SetChange]int),
		sets:       make(map[string]netfilter.Set),
		dirty:      newDirt(),
	}
	for _, id := range roots() {
		m.dirty.shared[id] = true
	}
	return m
}

// put adds a ServicePort or replaces its older version. It changes nothing if
// it fails, but for the older version, which is gone then.
func (m *model) put(sp *dataplane.ServicePort) error {
	m.remove(sp.Name)
	f := m.fragment(sp)
	if err := m.conflict(f); err != nil {
		return err
	}
	m.ports[sp.Name] = sp
	for _, c := range f.chains {
		m.owners[c.id] = sp.Name
		m.dirty.own[c.id] = c.rules
	}
	for _, r := range f.rules {
		m.share(r)
	}
	for _, s := range f.sets {
		m.touchSet(s.Name)
		m.sets[s.Name] = s
	}
	for _, e := range f.entries {
		m.count(e, 1)
	}
	return nil
}

// remove takes a ServicePort out, if it is there.
func (m *model) remove(n dataplane.ServicePortName) {
	sp, ok := m.ports[n]
	if !ok {
		return
	}
	delete(m.ports, n)
	f := m.fragment(sp)
	for _, c := range f.chains {
		delete(m.owners, c.id)
		m.dirty.own[c.id] = nil
	}
	for _, r := range f.rules {
		m.unshare(r)
	}
	for _, s := range f.sets {
		m.touchSet(s.Name)
		delete(m.sets, s.Name)
	}
	for _, e := range f.entries {
		m.count(e, -1)
	}
}

// conflict refuses a fragment whose names are taken: a collision of hashes
// must not connect two Services.
func (m *model) conflict(f *fragment) error {
	seen := make(map[chainID]bool, len(f.chains))
	for _, c := range f.chains {
		if other, taken := m.owners[c.id]; taken || seen[c.id] {
			return fmt.Errorf("its %s belongs to %s", c.id, other)
		}
		seen[c.id] = true
	}
	for _, s := range f.sets {
		if _, taken := m.sets[s.Name]; taken {
			return fmt.Errorf("its ipset %s belongs to another Service", s.Name)
		}
	}
	for _, r := range f.rules {
		if i, taken := slices.BinarySearchFunc(m.shared[r.in], r, compareShared); taken {
			return fmt.Errorf("its frontend %s belongs to %s", r.key, m.shared[r.in][i].owner)
		}
	}
	return nil
}

func compareShared(a, b sharedRule) int { return a.key.Compare(b.key) }

// share puts a rule into its chain, and makes a bucket that was empty known
// to the chain above it.
func (m *model) share(r sharedRule) {
	rules := m.shared[r.in]
	i, _ := slices.BinarySearchFunc(rules, r, compareShared)
	m.shared[r.in] = slices.Insert(rules, i, r)
	m.touch(r.in, len(rules) == 0)
}

func (m *model) unshare(r sharedRule) {
	rules := m.shared[r.in]
	i, ok := slices.BinarySearchFunc(rules, r, compareShared)
	if !ok {
		return
	}
	rules = slices.Delete(rules, i, i+1)
	if len(rules) == 0 {
		delete(m.shared, r.in)
	} else {
		m.shared[r.in] = rules
	}
	m.touch(r.in, len(rules) == 0)
}

func (m *model) touch(id chainID, withParent bool) {
	m.dirty.shared[id] = true
	if p, ok := parent(id); ok && withParent {
		m.dirty.shared[p] = true
	}
}

// touchSet must be called before a set comes or goes.
func (m *model) touchSet(name string) {
	if _, touched := m.dirty.sets[name]; !touched {
		_, there := m.sets[name]
		m.dirty.sets[name] = presenceOf(there)
	}
}

// count adds to those who want an entry.
func (m *model) count(e netfilter.SetChange, by int) {
	was := m.entries[e]
	if _, touched := m.dirty.entries[e]; !touched && (was == 0 || was+by == 0) {
		m.dirty.entries[e] = presenceOf(was > 0)
	}
	if was+by == 0 {
		delete(m.entries, e)
	} else {
		m.entries[e] = was + by
	}
}

// rules are the rules of a chain that is shared; nil if it should not exist.
func (m *model) rules(id chainID) []netfilter.Rule {
	rules := m.frame.head(id)
	switch id {
	case natServices(), filterFirewall():
		rules = append(rules, m.addrBuckets(id)...)
	case natNodePorts():
		rules = append(rules, m.portBuckets()...)
	}
	for i := range m.shared[id] {
		rules = append(rules, m.shared[id][i].rule)
	}
	rules = append(rules, m.frame.tail(id)...)
	if rules == nil && slices.Contains(roots(), id) {
		rules = []netfilter.Rule{}
	}
	return rules
}

func (m *model) addrBuckets(root chainID) []netfilter.Rule {
	var rules []netfilter.Rule
	for i := range addrBuckets {
		id := addrBucketChain(root, byte(i))
		if len(m.shared[id]) > 0 {
			rules = append(rules, netfilter.Rule{
				Destination: addrBucketMatch(m.family, byte(i)),
				Target:      netfilter.Jump(id.name),
			})
		}
	}
	return rules
}

func (m *model) portBuckets() []netfilter.Rule {
	var rules []netfilter.Rule
	for b := range portBuckets {
		if len(m.shared[b.chain()]) > 0 {
			rules = append(rules, b.jump())
		}
	}
	return rules
}
