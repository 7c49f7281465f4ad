// Package netfiltertest has a kernel that lives in memory, for tests of planes
// that must not need root or that want calls to fail.
package netfiltertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Kernel is a netfilter.Kernel with memory. It refuses what the real one
// refuses: jumps to chains that do not exist, the deletion of chains that are
// referred to, matches of sets that do not exist, and so on; one bad line and
// nothing is applied. It may be used by several goroutines.
type Kernel struct {
	family dataplane.Family

	mu     sync.Mutex
	tables map[netfilter.Table]table
	sets   map[string]netfilter.Set
	fault  func(Call) Fault
	calls  int
	writes int
}

// table holds chains by name. A chain is never changed in place, so that a
// copy of the map is a copy of the table.
type table map[string]netfilter.Chain

// New returns the kernel of a machine on which nobody has made a rule yet.
func New(f dataplane.Family) *Kernel {
	k := &Kernel{
		family: f,
		tables: make(map[netfilter.Table]table),
		sets:   make(map[string]netfilter.Set),
	}
	for _, t := range netfilter.Tables() {
		k.tables[t] = make(table)
		for _, name := range builtIn(t) {
			k.tables[t][name] = netfilter.Chain{Name: name, Policy: "ACCEPT"}
		}
	}
	return k
}

// builtIn are the chains that a table has by itself.
func builtIn(t netfilter.Table) []string {
	switch t {
	case netfilter.Raw:
		return []string{"PREROUTING", "OUTPUT"}
	case netfilter.Mangle:
		return []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	case netfilter.NAT:
		return []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
	}
	return []string{"INPUT", "FORWARD", "OUTPUT"}
}

// Writes counts the calls of Restore and ChangeSets that changed something
// and were not made to fail before.
func (k *Kernel) Writes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// Save visits the chains of each table, sorted by name.
func (k *Kernel) Save(ctx context.Context, tables []netfilter.Table, visit func(netfilter.Table, netfilter.Chain) error) error {
	for _, t := range tables {
		chains, err := k.snapshot(ctx, t)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(chains)) {
			c := chains[name]
			c.Rules = slices.Clone(c.Rules)
			if err := visit(t, c); err != nil {
				return err
			}
			clear(c.Rules) // they are valid during the visit only
		}
	}
	return nil
}

func (k *Kernel) snapshot(ctx context.Context, t netfilter.Table) (table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := cmp.Or(context.Cause(ctx), k.failure("Save").err); err != nil {
		return nil, fmt.Errorf("saving table %s: %w", t, err)
	}
	if k.tables[t] == nil {
		return nil, fmt.Errorf("table %s does not exist", t)
	}
	return maps.Clone(k.tables[t]), nil
}

// Restore applies a transaction to one table, or refuses it whole.
func (k *Kernel) Restore(ctx context.Context, tx netfilter.Transaction) error {
	if tx.IsEmpty() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fail := k.failure("Restore")
	if err := cmp.Or(context.Cause(ctx), fail.err); err != nil && !fail.applied {
		return &netfilter.RestoreError{Command: "in memory", Table: tx.Table, Err: err}
	}
	r := restoring{kernel: k, tx: tx, table: maps.Clone(k.tables[tx.Table])}
	if err := r.run(); err != nil {
		return err
	}
	k.tables[tx.Table] = r.table
	k.writes++
	if fail.err != nil {
		return &netfilter.RestoreError{Command: "in memory", Table: tx.Table, Err: fail.err}
	}
	return nil
}
