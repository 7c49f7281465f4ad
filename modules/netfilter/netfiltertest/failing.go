package netfiltertest

import (
	"context"

	"github.com/portway/portway/modules/netfilter"
)

// Failing is a kernel, such as a real one, whose calls fail before they are made
// when fail returns an error.
func Failing(k netfilter.Kernel, fail func() error) netfilter.Kernel { return failing{k, fail} }

type failing struct {
	netfilter.Kernel
	fail func() error
}

func (k failing) Save(ctx context.Context, tables []netfilter.Table, visit func(netfilter.Table, netfilter.Chain) error) error {
	if err := k.fail(); err != nil {
		return err
	}
	return k.Kernel.Save(ctx, tables, visit)
}

func (k failing) Restore(ctx context.Context, tx netfilter.Transaction) error {
	if err := k.fail(); err != nil {
		return err
	}
	return k.Kernel.Restore(ctx, tx)
}

func (k failing) Sets(ctx context.Context, keep func(string) bool) ([]netfilter.Set, error) {
	if err := k.fail(); err != nil {
		return nil, err
	}
	return k.Kernel.Sets(ctx, keep)
}

func (k failing) ChangeSets(ctx context.Context, plan netfilter.SetPlan) error {
	if err := k.fail(); err != nil {
		return err
	}
	return k.Kernel.ChangeSets(ctx, plan)
}
