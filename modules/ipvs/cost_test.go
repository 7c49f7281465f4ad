package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
	"github.com/portway/portway/modules/netfilter"
)

// counted is netfilter as far as it costs something: programs that are run, and
// messages about sets.
type counted struct {
	programs, messages int
}

func (c *counted) Save(context.Context, []netfilter.Table, func(netfilter.Table, netfilter.Chain) error) error {
	c.programs++
	return nil
}

func (c *counted) Restore(context.Context, netfilter.Transaction) error {
	c.programs++
	return nil
}

func (c *counted) Sets(context.Context, func(string) bool) ([]netfilter.Set, error) {
	c.messages++
	return nil, nil
}

// ChangeSets counts a message for each run of entries of one set, as
// netfilter.Host sends them.
func (c *counted) ChangeSets(_ context.Context, p netfilter.SetPlan) error {
	c.messages += len(p.Create) + len(p.Replace) + len(p.Destroy)
	for _, changes := range [][]netfilter.SetChange{p.Add, p.Remove} {
		for i := range changes {
			if i == 0 || changes[i].Set != changes[i-1].Set {
				c.messages++
			}
		}
	}
	return nil
}

// cost is what a Sync sends to the kernel.
type cost struct{ programs, sets, servers, routes int }

func (c cost) String() string {
	return fmt.Sprintf("%d programs, %d messages about sets, %d about virtual servers, %d about addresses",
		c.programs, c.sets, c.servers, c.routes)
}

// bill is a plane whose kernel counts.
type bill struct {
	*Plane
	rules  counted
	ipvs   *kerneltest.Servers
	device *kerneltest.Device
	last   cost
}

func newBill() *bill {
	b := &bill{ipvs: kerneltest.NewServers(), device: kerneltest.NewDevice()}
	b.Plane = newPlane(dataplane.IPv4, Options{}, &b.rules, b.ipvs, b.device)
	b.sysctls = kerneltest.NewSysctls()
	return b
}

func (b *bill) sync(t *testing.T, want *dataplane.Snapshot) cost {
	t.Helper()
	r, err := b.Sync(t.Context(), dataplane.SyncRequest{Now: time.Unix(1, 0), Want: want})
	if err != nil || len(r.Failed) > 0 {
		t.Fatalf("sync: %v, failed %v", err, r.Failed)
	}
	now := cost{b.rules.programs, b.rules.messages, b.ipvs.Messages(), b.device.Messages()}
	spent := cost{
		now.programs - b.last.programs, now.sets - b.last.sets, now.servers - b.last.servers, now.routes - b.last.routes,
	}
	b.last = now
	return spent
}

// numbered is a Service with a ClusterIP, a NodePort, and endpoints.
func numbered(i, endpoints int) *dataplane.ServicePort {
	pool := &dataplane.Pool{Family: dataplane.IPv4}
	for e := range endpoints {
		a := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), byte(e)})
		pool.Endpoints = append(pool.Endpoints, dataplane.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Weight: 1})
	}
	to := dataplane.Route{Action: dataplane.Forward, Pool: pool, Masquerade: dataplane.MasqueradeYes}
	routes := [3]dataplane.Route{to, to, to}
	return &dataplane.ServicePort{
		Name:  dataplane.ServicePortName{Namespace: "default", Name: fmt.Sprintf("svc-%05d", i), Protocol: dataplane.TCP},
		Pools: []*dataplane.Pool{pool},
		Frontends: []*dataplane.Frontend{
			{Family: dataplane.IPv4, Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Routes: routes},
			{Kind: dataplane.NodePort, Family: dataplane.IPv4, Port: uint16(20000 + i), Routes: routes},
		},
	}
}

// kubernetes#139513, #139328: one change costs what it changes, in messages,
// whatever the number of Services, and runs no program.
// Proves S9.6.
func TestCost(t *testing.T) {
	costs := make(map[int][]cost)
	for _, services := range []int{100, 10_000} {
		b := newBill()
		e := dataplane.Empty().Edit()
		for i := range services {
			e.Put(numbered(i, 5))
		}
		want, err := e.Build()
		if err != nil {
			t.Fatal(err)
		}
		b.sync(t, want)
		for _, edit := range []func(*dataplane.Builder){
			func(*dataplane.Builder) {},
			func(e *dataplane.Builder) { e.Put(numbered(7, 4)) },
			func(e *dataplane.Builder) { e.Put(numbered(7, 5)) },
			func(e *dataplane.Builder) { e.Put(numbered(20_000, 5)) },
			func(e *dataplane.Builder) { e.Delete(numbered(20_000, 5).Name) },
			func(e *dataplane.Builder) { e.Put(numbered(7, 1)) },
		} {
			e := want.Edit()
			edit(e)
			if want, err = e.Build(); err != nil {
				t.Fatal(err)
			}
			costs[services] = append(costs[services], b.sync(t, want))
		}
	}
	for i, limit := range []cost{
		{},
		{sets: 1, servers: 2},             // an endpoint leaves: weight 0 at the ClusterIP, deleted at the alias
		{sets: 1, servers: 2},             // it comes back
		{sets: 6, servers: 12, routes: 1}, // a Service comes
		{sets: 6, servers: 2, routes: 1},  // it goes
		{sets: 1, servers: 8},             // four of five endpoints leave
	} {
		small, large := costs[100][i], costs[10_000][i]
		if small != large {
			t.Errorf("change %d costs at 100 Services: %s\nat 10,000: %s", i, small, large)
		}
		if large != limit {
			t.Errorf("change %d costs %s, want %s", i, large, limit)
		}
	}
}
