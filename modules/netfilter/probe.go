package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// probeName is the chain, and the set, in which Probe tries things. Nothing
// refers to it, so no packet sees it.
const probeName = "PORTWAY-PROBE"

// Needs is what a plane wants to use.
type Needs struct {
	// Rules by table, of which each match and target is tried. They may
	// name the sets, but no chains.
	Rules map[Table][]Rule
	// Sets that the rules name; only their types count.
	Sets []Set
}

// Probe tells whether this kernel and its tools can do what a plane needs, by
// doing it in a chain to which nothing leads. The error says in a sentence
// what is missing and what to do about it.
func Probe(ctx context.Context, h *Host, n Needs) error {
	for t := range n.Rules {
		seen := errors.New("one chain is enough")
		if err := h.Save(ctx, []Table{t}, func(Table, Chain) error { return seen }); err != nil && !errors.Is(err, seen) {
			return fmt.Errorf("iptables: %w", reason(t, err))
		}
	}
	sets := make([]Set, len(n.Sets))
	plan := SetPlan{}
	for i, s := range n.Sets {
		s.Name = fmt.Sprintf("%s-%d", probeName, i)
		s.Entries = nil
		sets[i] = s
		plan.Destroy = append(plan.Destroy, s.Name)
	}
	if err := probeSets(ctx, h, sets); err != nil {
		return errors.Join(err, h.ChangeSets(ctx, plan))
	}
	var errs []error
	for t, rules := range n.Rules {
		named := make([]Rule, len(rules))
		for i, r := range rules {
			named[i] = r.withSets(n.Sets, sets)
		}
		errs = append(errs, h.tryAll(ctx, t, named))
	}
	return errors.Join(append(errs, h.ChangeSets(ctx, plan))...)
}

// tryAll tries all rules at once, as iptables-legacy moves the whole table
// each time, and one by one only to tell which are refused.
func (h *Host) tryAll(ctx context.Context, t Table, rules []Rule) error {
	if h.try(ctx, t, rules...) == nil {
		return nil
	}
	var errs []error
	for _, r := range rules {
		if err := h.try(ctx, t, r); err != nil {
			errs = append(errs, fmt.Errorf("iptables: %w", reason(t, err)))
		}
	}
	return errors.Join(errs...)
}

func probeSets(ctx context.Context, h *Host, sets []Set) error {
	for _, s := range sets {
		if err := h.ChangeSets(ctx, SetPlan{Create: []Set{s}}); err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("ipset: no permission to make sets: run as root or with CAP_NET_ADMIN")
			}
			return fmt.Errorf("ipset: the kernel cannot make a set of type %s (%w): load the module ip_set_%s",
				s.Type, err, strings.NewReplacer(":", "_", ",", "").Replace(string(s.Type)))
		}
	}
	return nil
}

// withSets replaces the names of sets.
func (r Rule) withSets(from, to []Set) Rule {
	for i := range from {
		for j := range r.Sets {
			if r.Sets[j].Name == from[i].Name {
				r.Sets[j].Name = to[i].Name
			}
		}
		switch r.Target.Kind {
		case TargetAddSet, TargetDelSet, TargetMapMark:
			if r.Target.Name == from[i].Name {
				r.Target.Name = to[i].Name
			}
		}
	}
	return r
}

// try writes rules into the scratch chain and removes the chain again.
func (h *Host) try(ctx context.Context, t Table, rules ...Rule) error {
	write := Transaction{Table: t, Chains: []Chain{{Name: probeName, Rules: rules}}}
	return h.restore(ctx, write, Transaction{Table: t, Delete: []string{probeName}})
}

// RandomFully says whether masquerading can choose ports fully at random.
func (h *Host) RandomFully(ctx context.Context) bool {
	return h.backend.RandomFully && h.try(ctx, NAT, Rule{Target: Masquerade(true)}) == nil
}

// reason puts the common causes into words that help.
func reason(t Table, err error) error {
	text := err.Error()
	var refused *RestoreError
	switch {
	case errors.Is(err, ErrLockTimeout):
		return fmt.Errorf("%w: see who with \"fuser -v /run/xtables.lock\"", err)
	case strings.Contains(text, "ermission denied"), strings.Contains(text, "not permitted"):
		return fmt.Errorf("no permission to read or write table %s: run as root or with CAP_NET_ADMIN", t)
	case errors.Is(err, ErrIncompatible):
		return fmt.Errorf("table %s holds rules that only nft understands: see them with \"nft list table ip %s\"", t, t)
	case strings.Contains(text, "able does not exist"), strings.Contains(text, "can't initialize"):
		return fmt.Errorf("the kernel has no table %s: load the module iptable_%s or nft_compat (%w)", t, t, err)
	case errors.As(err, &refused):
		return fmt.Errorf("the kernel or its tools lack a part of the rule %q in table %s: load the xt_ modules that it names (%w)",
			refused.Text, t, err)
	}
	return err
}
