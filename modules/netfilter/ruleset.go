package netfilter

import (
	"context"
	"fmt"
	"io"
	"slices"
)

// Ruleset holds tables whole, by name of table and chain.
type Ruleset map[Table]map[string]Chain

// ReadRuleset reads a whole iptables-save, of which the rules of a chain need
// not be together.
func ReadRuleset(r io.Reader) (Ruleset, error) {
	rules := make(Ruleset)
	err := ReadSave(r, func(t Table, c Chain) error {
		rules.add(t, c)
		return nil
	})
	return rules, err
}

func (s Ruleset) add(t Table, c Chain) {
	if s[t] == nil {
		s[t] = make(map[string]Chain)
	}
	c.Rules = append(slices.Clip(s[t][c.Name].Rules), c.Rules...)
	s[t][c.Name] = c
}

// ReadTable reads the chains of a table that keep wants; keep nil wants all.
func ReadTable(ctx context.Context, k Kernel, t Table, keep func(name string) bool) (map[string]Chain, error) {
	rules := Ruleset{t: make(map[string]Chain)}
	err := k.Save(ctx, []Table{t}, func(_ Table, c Chain) error {
		if keep == nil || keep(c.Name) {
			rules.add(t, c)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading table %s: %w", t, err)
	}
	return rules[t], nil
}
