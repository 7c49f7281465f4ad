package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/netfilter"
)

// guarded are the addresses that stay and are nobody's but ours: the node must
// not answer there.
func (t *takedown) guarded() []netip.Addr {
	var all []netip.Addr
	for a := range t.stay {
		if !t.held[a] {
			all = append(all, a)
		}
	}
	return all
}

// guard puts the addresses that stay into the set of those that refuse new flows.
func (t *takedown) guard(ctx context.Context) error {
	addrs := t.guarded()
	if len(addrs) == 0 {
		return nil
	}
	want := setIPs.empty(t.Family)
	for _, a := range addrs {
		want.Entries = append(want.Entries, netfilter.AddrEntry(a))
	}
	i := slices.IndexFunc(t.found.sets, func(s netfilter.Set) bool { return s.Name == want.Name })
	if i < 0 {
		return t.netfilter.ChangeSets(ctx, netfilter.SetPlan{Create: []netfilter.Set{want}})
	}
	var add netfilter.SetPlan
	for _, e := range want.Entries {
		if !slices.Contains(t.found.sets[i].Entries, e) {
			add.Add = append(add.Add, setIPs.entry(t.Family, e))
		}
	}
	if add.IsEmpty() {
		return nil
	}
	return t.netfilter.ChangeSets(ctx, add)
}

// guardChains are what is left of the mode's rules while addresses stay: the
// chain to which the jumps of before still lead, kube-proxy's too, and what it
// jumps to.
func (t *takedown) guardChains() []netfilter.Chain {
	f := frame{family: t.Family}
	return []netfilter.Chain{
		{Name: chainFilter, Rules: []netfilter.Rule{
			{Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT}, Target: netfilter.Return()},
			{
				Conntrack: netfilter.ConntrackMatch{States: netfilter.StateNew}, Sets: f.in(setIPs, "dst"),
				Target: netfilter.Jump(chainReject),
			},
		}},
		{Name: chainReject, Rules: f.chains()[chainID{netfilter.Filter, chainReject}]},
	}
}

// removeRules removes the rules from every back end, but for those that guard.
func (t *takedown) removeRules(ctx context.Context) error {
	var errs []error
	for _, h := range t.hosts {
		for _, table := range netfilter.Tables() {
			tx, err := t.planRules(ctx, h, table)
			if err == nil && !tx.IsEmpty() {
				err = h.Restore(ctx, tx)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("cleaning up table %s: %w", table, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (t *takedown) planRules(ctx context.Context, h netfilter.Kernel, table netfilter.Table) (netfilter.Transaction, error) {
	var guard []netfilter.Chain
	if table == netfilter.Filter && len(t.guarded()) > 0 {
		var err error
		if guard, err = t.guardIn(ctx, h); err != nil {
			return netfilter.Transaction{}, err
		}
	}
	guards := func(name string) bool {
		return slices.ContainsFunc(guard, func(c netfilter.Chain) bool { return c.Name == name })
	}
	tx, err := netfilter.PlanRemoval(ctx, h, table, netfilter.Owned{Chain: func(_ netfilter.Table, name string) bool {
		return ownsChain(name) && !guards(name)
	}})
	tx.Chains = guard // written anew, so nothing has to be taken out of them
	tx.Remove = slices.DeleteFunc(tx.Remove, func(r netfilter.PlacedRule) bool { return guards(r.Chain) })
	return tx, err
}

// guardIn are the chains that guard, if this back end is the one that guarded
// before.
func (t *takedown) guardIn(ctx context.Context, h netfilter.Kernel) (chains []netfilter.Chain, err error) {
	err = h.Save(ctx, []netfilter.Table{netfilter.Filter}, func(_ netfilter.Table, c netfilter.Chain) error {
		if c.Name == chainFilter {
			chains = t.guardChains()
		}
		return nil
	})
	return chains, err
}
