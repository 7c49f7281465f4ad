package iptables

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

var budget = flag.Duration("budget", 2*time.Second, "time for each law; more finds more")

// onBackends runs a test of the whole mode.
func onBackends(t *testing.T, test func(*testing.T, dataplanetest.Config)) {
	dataplanetest.OnBackends(t, func(t *testing.T, backend string) {
		test(t, dataplanetest.Config{Mode: Mode(Options{}), Iptables: backend, OpenFaulty: openFaulty, Budget: *budget})
	})
}

func TestLaws(t *testing.T) { onBackends(t, dataplanetest.RunLaws) }

func TestScale(t *testing.T) { onBackends(t, dataplanetest.RunScale) }

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
		p.program.Kernel = netfiltertest.Failing(p.program.Kernel, fail)
		return p, nil
	}
}
