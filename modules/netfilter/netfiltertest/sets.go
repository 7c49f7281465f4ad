package netfiltertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/portway/portway/modules/netfilter"
)

// Sets returns the sets sorted by name.
func (k *Kernel) Sets(ctx context.Context, keep func(name string) bool) ([]netfilter.Set, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := cmp.Or(context.Cause(ctx), k.failure("Sets").err); err != nil {
		return nil, fmt.Errorf("listing the ipsets: %w", err)
	}
	var sets []netfilter.Set
	for _, name := range slices.Sorted(maps.Keys(k.sets)) {
		if keep == nil || keep(name) {
			s := k.sets[name]
			s.Entries = slices.Clone(s.Entries)
			sets = append(sets, s)
		}
	}
	return sets, nil
}

// ChangeSets carries out a plan change by change, as the kernel does: what
// comes before an error is done.
func (k *Kernel) ChangeSets(ctx context.Context, plan netfilter.SetPlan) error {
	if plan.IsEmpty() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fail := k.failure("ChangeSets")
	if err := cmp.Or(context.Cause(ctx), fail.err); err != nil && !fail.applied {
		return fmt.Errorf("changing ipsets: %w", err)
	}
	k.writes++
	for _, change := range k.changes(plan) {
		if err := change(); err != nil {
			return err
		}
	}
	if fail.err != nil {
		return fmt.Errorf("changing ipsets: %w", fail.err)
	}
	return nil
}

// changes are the parts of a plan in order.
func (k *Kernel) changes(plan netfilter.SetPlan) []func() error {
	var list []func() error
	for _, s := range plan.Create {
		list = append(list, func() error { return k.create(s) })
	}
	for _, s := range plan.Replace {
		list = append(list, func() error { return k.replace(s) })
	}
	for _, c := range plan.Add {
		list = append(list, func() error { return k.change(c, true) })
	}
	for _, c := range plan.Remove {
		list = append(list, func() error { return k.change(c, false) })
	}
	for _, name := range plan.Destroy {
		list = append(list, func() error { return k.destroy(name) })
	}
	return list
}

const (
	maxSetName        = 31
	defaultMaxEntries = 65536
)

func (k *Kernel) create(s netfilter.Set) error {
	if old, ok := k.sets[s.Name]; ok {
		if !old.SameHeader(&s) {
			return fmt.Errorf("making the ipset %s: %w", s.Name, netfilter.ErrSetExists)
		}
		s.Entries = slices.Concat(old.Entries, s.Entries)
	}
	if s.Name == "" || len(s.Name) > maxSetName {
		return fmt.Errorf("making the ipset %s: its name is too long or empty", s.Name)
	}
	entries := s.Entries
	s.Entries = nil
	k.sets[s.Name] = s
	for _, e := range entries {
		if err := k.change(netfilter.SetChange{Set: s.Name, Type: s.Type, Entry: e}, true); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) replace(s netfilter.Set) error {
	old, ok := k.sets[s.Name]
	if ok && k.uses(s.Name) && (old.Type != s.Type || old.Family != s.Family) {
		return fmt.Errorf("replacing the ipset %s: %w", s.Name, netfilter.ErrSetInUse)
	}
	delete(k.sets, s.Name)
	return k.create(s)
}

func (k *Kernel) change(c netfilter.SetChange, add bool) error {
	s, ok := k.sets[c.Set]
	if !ok {
		return fmt.Errorf("changing entries of the ipset %s: %w", c.Set, netfilter.ErrSetMissing)
	}
	i := slices.IndexFunc(s.Entries, func(e netfilter.SetEntry) bool { return e.Key() == c.Entry.Key() })
	s.Entries = slices.Clone(s.Entries)
	if i >= 0 {
		s.Entries = slices.Delete(s.Entries, i, i+1)
	}
	if add {
		if len(s.Entries) >= int(cmp.Or(s.MaxEntries, defaultMaxEntries)) {
			return fmt.Errorf("changing entries of the ipset %s: %w", c.Set, netfilter.ErrSetFull)
		}
		s.Entries = append(s.Entries, c.Entry)
	}
	k.sets[c.Set] = s
	return nil
}

func (k *Kernel) destroy(name string) error {
	if k.uses(name) {
		return fmt.Errorf("destroying the ipset %s: %w", name, netfilter.ErrSetInUse)
	}
	delete(k.sets, name)
	return nil
}

// uses says whether a rule names a set.
func (k *Kernel) uses(name string) bool {
	for _, t := range k.tables {
		for _, c := range t {
			for i := range c.Rules {
				if slices.Contains(c.Rules[i].SetNames(), name) {
					return true
				}
			}
		}
	}
	return false
}
