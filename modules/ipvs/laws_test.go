package ipvs

import (
	"context"
	"flag"
	"regexp"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

var budget = flag.Duration("budget", 4*time.Second, "time for each law; more finds more")

// config is for a kernel with IPVS, which may have no nftables: go test -exec
// build/tools/secondkernel, or a machine with ip_vs.
func config(t *testing.T) dataplanetest.Config {
	t.Helper()
	if err := kernel.Support(t.Context(), dataplane.IPv4); err != nil {
		t.Fatalf("%v; or run the tests with -exec build/tools/secondkernel", err)
	}
	return dataplanetest.Config{
		Mode: Mode(Options{}), Iptables: netfilter.Legacy, OpenFaulty: openFaulty, Budget: *budget,
		Normalize: func(dump string) string { return deviceNumber.ReplaceAllString(dump, "$1") },
	}
}

// deviceNumber is another one whenever the device is made.
var deviceNumber = regexp.MustCompile(`(?m)^\d+: (kube-ipvs0 )`)

func TestLaws(t *testing.T) { dataplanetest.RunLaws(t, config(t)) }

func TestScenarios(t *testing.T) { dataplanetest.RunScenarios(t, config(t)) }

// openFaulty opens a plane whose calls to the kernel may fail.
func openFaulty(fail func() error) dataplanetest.Open {
	return func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := Options{}.open(ctx, f)
		if err != nil {
			return nil, err
		}
		p.netfilter, p.servers, p.device = faulty{p.netfilter, fail}, faultyServers{p.servers, fail}, faultyDevice{p.device, fail}
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

type faultyServers struct {
	kernel.Servers
	fail func() error
}

func (s faultyServers) List(ctx context.Context, f dataplane.Family) ([]kernel.VirtualServer, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	return s.Servers.List(ctx, f)
}

// Apply fails before the changes, or with half of them made.
func (s faultyServers) Apply(ctx context.Context, ops []kernel.Op) ([]kernel.Refusal, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	half := len(ops) / 2
	refused, err := s.Servers.Apply(ctx, ops[:half])
	if err != nil {
		return refused, err
	}
	if err := s.fail(); err != nil {
		return refused, err
	}
	more, err := s.Servers.Apply(ctx, ops[half:])
	return append(refused, more...), err
}

type faultyDevice struct {
	kernel.Device
	fail func() error
}

func (d faultyDevice) Ensure(ctx context.Context) (bool, error) {
	if err := d.fail(); err != nil {
		return false, err
	}
	return d.Device.Ensure(ctx)
}

func (d faultyDevice) List(ctx context.Context, f dataplane.Family) ([]kernel.Local, error) {
	if err := d.fail(); err != nil {
		return nil, err
	}
	return d.Device.List(ctx, f)
}

func (d faultyDevice) Apply(ctx context.Context, ops []kernel.LocalOp) ([]kernel.LocalRefusal, error) {
	if err := d.fail(); err != nil {
		return nil, err
	}
	return d.Device.Apply(ctx, ops)
}
