package netfilter

import (
	"context"
	"errors"
	"fmt"
)

// Owned says which chains, sets and rules belong to somebody. A nil function
// owns nothing.
type Owned struct {
	Chain func(t Table, name string) bool
	// Rule owns rules in chains of others, besides the jumps to owned chains.
	Rule func(t Table, chain string, r Rule) bool
	Set  func(name string) bool
}

// Remove takes everything that is owned out of the kernel and nothing else:
// first the rules in chains of others, then chains, then sets. It may be
// repeated. What cannot be removed does not stop the rest; the errors name it.
func Remove(ctx context.Context, k Kernel, o Owned) error {
	var errs []error
	for _, t := range Tables() {
		tx, err := PlanRemoval(ctx, k, t, o)
		if err == nil && !tx.IsEmpty() {
			err = k.Restore(ctx, tx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("cleaning up table %s: %w", t, err))
		}
	}
	return errors.Join(append(errs, removeSets(ctx, k, o))...)
}

// PlanRemoval plans the removal of what is owned from one table.
func PlanRemoval(ctx context.Context, k Kernel, t Table, o Owned) (Transaction, error) {
	tx := Transaction{Table: t}
	if o.Chain == nil && o.Rule == nil {
		return tx, nil
	}
	owns := func(chain string) bool { return chain != "" && o.Chain != nil && o.Chain(t, chain) }
	err := k.Save(ctx, []Table{t}, func(_ Table, c Chain) error {
		if c.Policy == "" && owns(c.Name) {
			tx.Delete = append(tx.Delete, c.Name)
			return nil
		}
		for _, r := range c.Rules {
			if owns(r.Target.chain()) || o.Rule != nil && o.Rule(t, c.Name, r) {
				tx.Remove = append(tx.Remove, PlacedRule{Chain: c.Name, Rule: r})
			}
		}
		return nil
	})
	return tx, err
}

func removeSets(ctx context.Context, k Kernel, o Owned) error {
	if o.Set == nil {
		return nil
	}
	sets, err := k.Sets(ctx, o.Set)
	if err != nil {
		return fmt.Errorf("cleaning up sets: %w", err)
	}
	var errs []error
	for _, s := range sets {
		if err := k.ChangeSets(ctx, SetPlan{Destroy: []string{s.Name}}); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
