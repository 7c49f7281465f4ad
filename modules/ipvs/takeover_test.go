package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// translated is a kernel in which another mode serves the Service of numbered(1, …).
func translated(t *testing.T, f dataplane.Family, to netip.AddrPort) *memory {
	t.Helper()
	m := newMemory(f, Options{})
	jump := netfilter.Rule{Target: netfilter.Jump(chainOthers)}
	err := m.rules.Restore(t.Context(), netfilter.Transaction{
		Table: netfilter.NAT,
		Chains: []netfilter.Chain{{Name: chainOthers, Rules: []netfilter.Rule{{
			Destination: netfilter.MatchAddr(netip.MustParseAddr("10.96.0.1")), Protocol: netfilter.Is(dataplane.TCP),
			DestPort: netfilter.Port(80), Target: netfilter.DNAT(to),
		}}}},
		Insert: []netfilter.PlacedRule{{Chain: "PREROUTING", Rule: jump}, {Chain: "OUTPUT", Rule: jump}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Where another mode's rules stand the first Sync leaves no moment without a way,
// wherever it ends.
// Proves S7.9.
func TestTakeOverHasNoGap(t *testing.T) {
	old := netip.MustParseAddrPort("10.128.9.9:8080")
	want := snapshot(t, dataplane.Empty(), with(numbered(1, 2)))
	flow := dataplane.Flow{
		Protocol: dataplane.TCP, Src: netip.MustParseAddrPort("10.128.1.77:40000"), Dst: netip.MustParseAddrPort("10.96.0.1:80"),
		InInterface: "eth0",
	}
	verdict := want.Decide(flow)
	for calls, interrupted := 0, true; interrupted; calls++ {
		m := translated(t, dataplane.IPv4, old)
		interrupted = m.interrupt(t, want, calls)
		for _, end := range follow(t, m.walker(t), netfilter.PacketOf(flow)) {
			o := end.Explain()
			if _, right := verdict.Endpoint(o.Endpoint); o.Action != dataplane.Forward || !right && o.Endpoint != old {
				t.Errorf("after %d calls of the kernel the flow ends at: %s %s", calls, o.Action, o.Endpoint)
			}
		}
	}
}

// kube-proxy binds ClusterIPs to a device that is down. They become routes, and
// stay in use all the time.
// Proves S9.7.
func TestBoundAddressesBecomeRoutes(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	vip, gone := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.200")
	if err := m.device.BindDown(t.Context(), vip, gone); err != nil {
		t.Fatal(err)
	}
	want := snapshot(t, dataplane.Empty(), with(numbered(1, 2)))
	watch := &watchedDevice{Device: m.device, t: t, addr: vip}
	m.Plane.device = watch
	m.sync(t, want, false)
	var left []kernel.Local
	list, err := m.device.List(t.Context(), m.family)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if !isAlias(l.Prefix.Addr()) {
			left = append(left, l)
		}
	}
	if !slices.Equal(left, []kernel.Local{localRoute(vip)}) {
		t.Errorf("the device makes local: %v", left)
	}
	m.settled(t, want)
}

// watchedDevice wants an address to be local after every change.
type watchedDevice struct {
	kernel.Device
	t    *testing.T
	addr netip.Addr
}

func (d *watchedDevice) Apply(ctx context.Context, ops []kernel.LocalOp) (refused []kernel.LocalRefusal, err error) {
	for _, op := range ops {
		more, err := d.Device.Apply(ctx, []kernel.LocalOp{op})
		if err != nil {
			return nil, err
		}
		refused = append(refused, more...)
		list, err := d.List(ctx, dataplane.FamilyOf(d.addr))
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(list, func(l kernel.Local) bool { return l.Prefix.Addr() == d.addr }) {
			d.t.Errorf("after %s nothing makes %s local", op, d.addr)
		}
	}
	return refused, nil
}
