package iptables

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/netfilter"
)

var budget = flag.Duration("budget", 4*time.Second, "time for each law; more finds more")

// onBackends runs a test of the whole mode.
func onBackends(t *testing.T, test func(*testing.T, dataplanetest.Config)) {
	dataplanetest.OnBackends(t, func(t *testing.T, backend string) {
		test(t, dataplanetest.Config{Mode: Mode(Options{}), Iptables: backend, OpenFaulty: openFaulty, Budget: *budget})
	})
}

func TestLaws(t *testing.T) { onBackends(t, dataplanetest.RunLaws) }

func TestScenarios(t *testing.T) {
	onBackends(t, func(t *testing.T, cfg dataplanetest.Config) { dataplanetest.RunScenarios(t, cfg) })
}

// openFaulty opens a plane whose calls to the kernel may fail.
func openFaulty(fail func() error) dataplanetest.Open {
	return func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := Options{}.open(ctx, f)
		if err != nil {
			return nil, err
		}
		p.program.Kernel = faulty{p.program.Kernel, fail}
		return p, nil
	}
}

// faulty is a kernel whose calls may fail before they are made.
type faulty struct {
	netfilter.Kernel
	fail func() error
}

func (k faulty) Save(ctx context.Context, t netfilter.Table, visit func(netfilter.Chain) error) error {
	if err := k.fail(); err != nil {
		return err
	}
	return k.Kernel.Save(ctx, t, visit)
}

func (k faulty) Restore(ctx context.Context, tx netfilter.Transaction) error {
	if err := k.fail(); err != nil {
		return err
	}
	return k.Kernel.Restore(ctx, tx)
}

func (k faulty) Sets(ctx context.Context, keep func(string) bool) ([]netfilter.Set, error) {
	if err := k.fail(); err != nil {
		return nil, err
	}
	return k.Kernel.Sets(ctx, keep)
}

func (k faulty) ChangeSets(ctx context.Context, plan netfilter.SetPlan) error {
	if err := k.fail(); err != nil {
		return err
	}
	return k.Kernel.ChangeSets(ctx, plan)
}
