package program

import (
	"fmt"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// model is what the kernel should hold, and which of it may differ from what
// it does hold. Rules of chains that one ServicePort owns are kept only until
// they are written: its source gives them back.
type model struct {
	layout  *Layout
	parents map[ChainID]ChainID
	frame   Frame
	// lenient leaves out what is late.
	lenient bool

	sources map[dataplane.ServicePortName]Source
	owners  map[ChainID]dataplane.ServicePortName
	// shared holds the rules of chains that many ServicePorts share, sorted by
	// frontend.
	shared map[ChainID][]SharedRule
	// entries counts who wants each entry of a shared set.
	entries map[netfilter.SetChange]int
	// fixed are the entries that no ServicePort wants.
	fixed map[netfilter.SetChange]bool
	sets  map[string]netfilter.Set // of one ServicePort

	dirty dirt
}

// newModel is a model without Services, of a node.
func newModel(l *Layout, f Frame) *model {
	m := &model{
		layout:  l,
		parents: l.parents(),
		frame:   f,
		sources: make(map[dataplane.ServicePortName]Source),
		owners:  make(map[ChainID]dataplane.ServicePortName),
		shared:  make(map[ChainID][]SharedRule),
		entries: make(map[netfilter.SetChange]int),
		sets:    make(map[string]netfilter.Set),
		dirty:   newDirt(),
	}
	m.touchRoots()
	return m
}

// put adds a ServicePort or replaces its older version. It changes nothing if
// it fails, but for the older version, which is gone then.
func (m *model) put(s Source) error {
	f := s.Fragment()
	m.remove(f.Name)
	if err := m.conflict(f); err != nil {
		return err
	}
	m.sources[f.Name] = s
	for _, c := range f.Chains {
		m.owners[c.ID] = f.Name
		m.dirty.own[c.ID] = c.Rules
	}
	for _, r := range f.Rules {
		m.share(r)
	}
	for _, s := range f.Sets {
		m.touchSet(s.Name)
		m.sets[s.Name] = s
	}
	for _, e := range f.Entries {
		m.count(e, 1)
	}
	return nil
}

// remove takes a ServicePort out, if it is there.
func (m *model) remove(n dataplane.ServicePortName) {
	s, ok := m.sources[n]
	if !ok {
		return
	}
	delete(m.sources, n)
	f := s.Fragment()
	for _, c := range f.Chains {
		delete(m.owners, c.ID)
		m.dirty.own[c.ID] = nil
	}
	for _, r := range f.Rules {
		m.unshare(r)
	}
	for _, s := range f.Sets {
		m.touchSet(s.Name)
		delete(m.sets, s.Name)
	}
	for _, e := range f.Entries {
		m.count(e, -1)
	}
}

// conflict refuses a fragment whose names are taken: a collision of hashes
// must not connect two Services.
func (m *model) conflict(f *Fragment) error {
	seen := make(map[ChainID]bool, len(f.Chains))
	for _, c := range f.Chains {
		if other, taken := m.owners[c.ID]; taken {
			return fmt.Errorf("its %s belongs to %s", c.ID, other)
		}
		if seen[c.ID] {
			return fmt.Errorf("two of its chains have the name of %s", c.ID)
		}
		seen[c.ID] = true
	}
	for _, s := range f.Sets {
		if _, taken := m.sets[s.Name]; taken {
			return fmt.Errorf("its ipset %s belongs to another Service", s.Name)
		}
	}
	for _, r := range f.Rules {
		if i, taken := slices.BinarySearchFunc(m.shared[r.In], r, compareShared); taken {
			return fmt.Errorf("its frontend %s belongs to %s", r.Key, m.shared[r.In][i].Owner)
		}
	}
	return nil
}

func compareShared(a, b SharedRule) int { return a.Key.Compare(b.Key) }

// share puts rules into their chain, and makes a bucket that was empty known
// to the chain above it.
func (m *model) share(r SharedRule) {
	rules := m.shared[r.In]
	i, _ := slices.BinarySearchFunc(rules, r, compareShared)
	m.shared[r.In] = slices.Insert(rules, i, r)
	m.touch(r.In, len(rules) == 0)
}

func (m *model) unshare(r SharedRule) {
	rules := m.shared[r.In]
	i, ok := slices.BinarySearchFunc(rules, r, compareShared)
	if !ok {
		return
	}
	rules = slices.Delete(rules, i, i+1)
	if len(rules) == 0 {
		delete(m.shared, r.In)
	} else {
		m.shared[r.In] = rules
	}
	m.touch(r.In, len(rules) == 0)
}

func (m *model) touch(id ChainID, withParent bool) {
	m.dirty.shared[id] = true
	if p, ok := m.parents[id]; ok && withParent {
		m.dirty.shared[p] = true
	}
}

func (m *model) touchRoots() {
	for _, id := range m.frame.Roots {
		m.dirty.shared[id] = true
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

// setFrame takes over what is new of the node.
func (m *model) setFrame(f Frame) {
	if !f.equal(m.frame) {
		m.touchRoots()
		m.frame = f
		m.touchRoots()
	}
}

// setLenient leaves out what is late, or puts it in.
func (m *model) setLenient(lenient bool) {
	m.lenient = lenient
	for id := range m.frame.Late {
		m.dirty.shared[id] = true
	}
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
