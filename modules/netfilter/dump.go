package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
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
	text, err := io.ReadAll(rules)
	if err != nil {
		return nil, fmt.Errorf("reading the saved rules: %w", err)
	}
	if d.rules, err = ReadRuleset(bytes.NewReader(text)); err != nil {
		return nil, err
	}
	if err := d.check(text); err != nil {
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

// check refuses what no kernel of the family holds.
func (d *Dump) check(text []byte) error {
	wrong := func(t Table, chain string, rule int, why string) error {
		return fmt.Errorf("line %d of the saved rules: %s", ruleLine(text, t, chain, rule), why)
	}
	for _, t := range slices.Sorted(maps.Keys(d.rules)) {
		chains := d.rules[t]
		if chain, rule, ok := findLoop(chains); ok {
			return wrong(t, chain, rule, fmt.Sprintf("chain %s leads back to itself", chain))
		}
		for _, name := range slices.Sorted(maps.Keys(chains)) {
			rules := chains[name].Rules
			for i := range rules {
				if a, ok := rules[i].otherFamily(d.family); ok {
					return wrong(t, name, i, fmt.Sprintf("a rule for %s among those of %s", a, d.family))
				}
			}
		}
	}
	return nil
}

// otherFamily finds an address that is not of a family.
func (r *Rule) otherFamily(f dataplane.Family) (netip.Addr, bool) {
	for _, a := range []netip.Addr{r.Source.Addr, r.Destination.Addr, r.Target.To.Addr(), r.Target.Net.Addr()} {
		if a.IsValid() && dataplane.FamilyOf(a) != f {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// findLoop returns a chain that leads back to itself, and its rule that does.
func findLoop(chains map[string]Chain) (chain string, rule int, found bool) {
	const open, done = 1, 2
	state := make(map[string]int)
	var visit func(string) bool
	visit = func(name string) bool {
		state[name] = open
		for i, r := range chains[name].Rules {
			to := r.Target.Name
			_, there := chains[to]
			if !there || r.Target.Kind != TargetJump && r.Target.Kind != TargetGoto || state[to] == done {
				continue
			}
			if state[to] == open || visit(to) {
				if !found {
					chain, rule, found = name, i, true
				}
				return true
			}
		}
		state[name] = done
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if state[name] == 0 && visit(name) {
			return chain, rule, true
		}
	}
	return "", 0, false
}

// ruleLine finds a rule in what iptables-save printed.
func ruleLine(text []byte, t Table, chain string, rule int) int {
	n, table, prefix := 0, "", "-A "+chain
	for line := range bytes.Lines(text) {
		n++
		if name, ok := bytes.CutPrefix(line, []byte("*")); ok {
			table = string(bytes.TrimSpace(name))
		}
		if len(line) > 0 && line[0] == '[' { // with counters
			_, line, _ = bytes.Cut(line, []byte(" "))
		}
		rest, ok := bytes.CutPrefix(bytes.TrimRight(line, " \r\n"), []byte(prefix))
		if table != string(t) || !ok || len(rest) > 0 && rest[0] != ' ' {
			continue
		}
		if rule--; rule < 0 {
			return n
		}
	}
	return n
}

// Save visits the chains of a table in the order of their names. A table that
// was not saved has none.
func (d *Dump) Save(_ context.Context, tables []Table, visit func(Table, Chain) error) error {
	for _, t := range tables {
		for _, name := range slices.Sorted(maps.Keys(d.rules[t])) {
			if err := visit(t, d.rules[t][name]); err != nil {
				return err
			}
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
