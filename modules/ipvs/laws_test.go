package ipvs

import (
	"context"
	"errors"
	"flag"
	"regexp"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

// budget is for kernels on which programs start slowly: one generated case for
// each law.
var budget = flag.Duration("budget", time.Millisecond, "time for each law; more finds more")

// config is for a kernel with IPVS, which may have no nftables: go test -exec
// build/tools/secondkernel, or a machine with ip_vs.
func config(t *testing.T) dataplanetest.Config {
	t.Helper()
	if err := kernel.Support(t.Context(), dataplane.IPv4); err != nil {
		t.Fatalf("%v; or run the tests with -exec build/tools/secondkernel", err)
	}
	return dataplanetest.Config{
		Mode: Mode(Options{}), Iptables: netfilter.Legacy, OpenFaulty: openFaulty, Take: takeServer, Budget: *budget,
		Wipes:     [][]string{{"ipvsadm", "-C"}, {"ip", "address", "flush", "dev", "kube-ipvs0"}},
		Normalize: func(dump string) string { return deviceNumber.ReplaceAllString(dump, "$1") },
	}
}

// deviceNumber is another one whenever the device is made.
var deviceNumber = regexp.MustCompile(`(?m)^\d+: (kube-ipvs0 )`)

func TestLaws(t *testing.T) { dataplanetest.RunLaws(t, config(t)) }

func TestScale(t *testing.T) { dataplanetest.RunScale(t, config(t)) }

func TestScenarios(t *testing.T) { dataplanetest.RunScenarios(t, config(t)) }

// takeServer deletes a virtual server, or one of its real servers.
func takeServer(ctx context.Context, f dataplane.Family, choose func(n int) int) (taken string, err error) {
	servers, err := kernel.Open(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	all, err := servers.List(ctx, f)
	if err != nil || len(all) == 0 {
		return "", err
	}
	server := all[choose(len(all))]
	op := kernel.Op{Verb: kernel.DeleteServer, Key: server.Key}
	if i := choose(len(server.Reals) + 1); i < len(server.Reals) {
		op.Verb, op.Real = kernel.DeleteReal, server.Reals[i].Addr
	}
	refused, err := servers.Apply(ctx, []kernel.Op{op})
	for _, r := range refused {
		err = errors.Join(err, &r)
	}
	return op.String(), err
}

// openFaulty opens a plane whose calls to the kernel may fail.
func openFaulty(fail func() error) dataplanetest.Open {
	return func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := Options{}.open(ctx, f)
		if err != nil {
			return nil, err
		}
		p.beFaulty(fail)
		return p, nil
	}
}

// beFaulty lets the calls to the kernel fail.
func (p *Plane) beFaulty(fail func() error) {
	p.netfilter = netfiltertest.Failing(p.netfilter, fail)
	p.servers, p.device = faultyServers{p.servers, fail}, faultyDevice{p.device, fail}
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
