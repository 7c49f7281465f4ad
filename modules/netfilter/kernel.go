package netfilter

import "context"

// Kernel is netfilter as a plane of one address family sees it: the tables of
// iptables and the sets of ipset. [Host] is the real one, [Dump] reads what
// was saved to files, and netfiltertest.Kernel lives in memory.
type Kernel interface {
	// Save calls visit for each chain of some tables, of which each is read at
	// one moment, in any order. The rules of a chain are valid until visit
	// returns, unless it copies them. Its error is returned as it is.
	Save(ctx context.Context, tables []Table, visit func(Table, Chain) error) error

	// Restore makes the changes of a transaction, all or none, and touches
	// nothing else. A transaction that the kernel or its tools refuse gives
	// a [*RestoreError].
	Restore(ctx context.Context, tx Transaction) error

	// Sets returns the sets of this family whose names keep wants, with
	// their entries, sorted by name; keep nil wants all.
	Sets(ctx context.Context, keep func(name string) bool) ([]Set, error)

	// ChangeSets carries out a plan. It is not atomic: after an error a part
	// of the plan may be done.
	ChangeSets(ctx context.Context, plan SetPlan) error
}
