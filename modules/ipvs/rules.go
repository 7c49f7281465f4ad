package ipvs

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/portway/portway/modules/netfilter"
)

// writeRules makes the rules those of the frame. Each table changes at once.
func (s *pass) writeRules(ctx context.Context) error {
	if s.model.dirty.rules {
		for _, tx := range planRules(s.model.frame, s.rules, s.reading) {
			if tx.IsEmpty() {
				continue
			}
			if err := s.netfilter.Restore(ctx, tx); err != nil {
				return err
			}
			s.confirm(tx)
		}
	}
	s.reading = nil
	return nil
}

// planRules plans a transaction for each table. The kernel's own chains are
// known only after a reading.
func planRules(f frame, have map[chainID][]netfilter.Rule, r *reading) []netfilter.Transaction {
	all := make([]netfilter.Transaction, len(tables()))
	for i, t := range tables() {
		tx := &all[i]
		tx.Table = t
		planChains(tx, f.chains(), have)
		if r == nil {
			continue
		}
		for _, h := range hooks() {
			if h.id.table == t {
				tx.PutInFront(h.id.name, r.hooks[h.id], h.jumps, ownsRule)
			}
		}
	}
	return all
}

// planChains compares our own chains.
func planChains(tx *netfilter.Transaction, want, have map[chainID][]netfilter.Rule) {
	for id, rules := range want {
		if h, there := have[id]; id.table == tx.Table && !(there && slices.Equal(h, rules)) {
			tx.Chains = append(tx.Chains, netfilter.Chain{Name: id.name, Rules: rules})
		}
	}
	for id := range have {
		if _, wanted := want[id]; id.table == tx.Table && !wanted {
			tx.Delete = append(tx.Delete, id.name)
		}
	}
	slices.SortFunc(tx.Chains, func(a, b netfilter.Chain) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(tx.Delete)
}

// ownsRule tells whether a rule in one of the kernel's chains is our jump. What
// leads to chains of kube-proxy alone goes with them.
func ownsRule(r netfilter.Rule) bool {
	jumps := r.Target.Kind == netfilter.TargetJump || r.Target.Kind == netfilter.TargetGoto
	return jumps && strings.HasPrefix(r.Target.Name, chainPrefix)
}

// confirm takes over what the kernel has accepted.
func (s *pass) confirm(tx netfilter.Transaction) {
	for _, c := range tx.Chains {
		s.rules[chainID{tx.Table, c.Name}] = c.Rules
		s.written[string(tx.Table)] += len(c.Rules)
	}
	for _, name := range tx.Delete {
		delete(s.rules, chainID{tx.Table, name})
	}
	s.written[string(tx.Table)] += len(tx.Insert)
	s.report.Writes += tx.Writes()
}

// sweep removes what only a kube-proxy in ipvs mode has. Its other rules may
// still name its sets: then they go the next time, as nothing depends on them.
func (s *pass) sweep(ctx context.Context) {
	if !s.leftovers {
		return
	}
	for _, t := range tables() {
		tx, err := netfilter.PlanRemoval(ctx, s.netfilter, t, netfilter.Owned{
			Chain: func(_ netfilter.Table, name string) bool { return isLeftover(name) },
		})
		if err == nil && !tx.IsEmpty() {
			err = s.netfilter.Restore(ctx, tx)
			s.report.Writes += tx.Writes()
		}
		if err != nil {
			s.warn("what kube-proxy left in table %s is still there: %v", t, err)
		}
	}
	sets, err := s.netfilter.Sets(ctx, func(name string) bool { return isLeftoverSet(s.family, name) })
	for _, set := range sets {
		drop := netfilter.SetPlan{Destroy: []string{set.Name}}
		if err = s.netfilter.ChangeSets(ctx, drop); err == nil {
			s.report.Writes++
		} else if errors.Is(err, netfilter.ErrSetInUse) {
			err = nil
		}
	}
	if err != nil {
		s.warn("what kube-proxy left in ipsets is still there: %v", err)
	}
}
