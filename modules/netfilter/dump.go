package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// Dump is a Kernel of which only what was saved is left. It can be read.
type Dump struct {
	family dataplane.Family
	rules  Ruleset
	sets   []Set
}

// ReadDump reads the output of iptables-save or ip6tables-save, and that of
// "ipset save", which may be nil.
func ReadDump(f dataplane.Family, rules, sets io.Reader) (*Dump, error) {
	d := &Dump{family: f}
	var err error
	if d.rules, err = ReadRuleset(rules); err != nil {
		return nil, err
	}
	if sets == nil {
		return d, nil
	}
	all, err := ReadSets(sets)
	if err != nil {
		return nil, err
	}
	d.sets = slices.DeleteFunc(all, func(s Set) bool { return s.Family != 0 && s.Family != f })
	return d, nil
}

// Save visits the chains in the order of their names. A table that was not
// saved has none.
func (d *Dump) Save(_ context.Context, t Table, visit func(Chain) error) error {
	for _, name := range slices.Sorted(maps.Keys(d.rules[t])) {
		if err := visit(d.rules[t][name]); err != nil {
			return err
		}
	}
	return nil
}

// Sets returns the saved sets.
func (d *Dump) Sets(_ context.Context, keep func(name string) bool) ([]Set, error) {
	var sets []Set
	for _, s := range d.sets {
		if keep == nil || keep(s.Name) {
			sets = append(sets, s)
		}
	}
	return sets, nil
}

// Restore fails.
func (d *Dump) Restore(context.Context, Transaction) error {
	return fmt.Errorf("writing rules to a dump: %w", errors.ErrUnsupported)
}

// ChangeSets fails.
func (d *Dump) ChangeSets(context.Context, SetPlan) error {
	return fmt.Errorf("writing sets to a dump: %w", errors.ErrUnsupported)
}
