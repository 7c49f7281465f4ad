package ipvs

import (
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// kubernetes#59507: virtual servers of others stay, whatever becomes of ours,
// and those in excluded ranges even on our device.
func TestForeignServersStay(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}})
	foreign := kernel.Key{Protocol: dataplane.TCP, Addr: netip.MustParseAddr("207.175.44.110"), Port: 80}
	excluded := kernel.Key{Protocol: dataplane.TCP, Addr: netip.MustParseAddr("10.200.0.1"), Port: 80}
	stale := kernel.Key{Protocol: dataplane.TCP, Addr: netip.MustParseAddr("10.96.9.9"), Port: 80}
	if _, err := m.device.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, k := range []kernel.Key{foreign, excluded, stale} {
		if k != foreign {
			if _, err := m.device.Apply(t.Context(), []kernel.LocalOp{{Local: localRoute(k.Addr)}}); err != nil {
				t.Fatal(err)
			}
		}
		refused, err := m.ipvs.Apply(t.Context(), []kernel.Op{
			{Verb: kernel.AddServer, Key: k, Server: kernel.Server{Scheduler: "rr"}},
			{Verb: kernel.AddReal, Key: k, Real: netip.MustParseAddrPort("10.1.1.1:80"), Weight: 1},
		})
		if err != nil || len(refused) > 0 {
			t.Fatal(err, refused)
		}
	}
	has := func(k kernel.Key, want bool) {
		t.Helper()
		if got := m.reals(t, k) != "none"; got != want {
			t.Errorf("%s exists: %t, want %t", k, got, want)
		}
	}
	want := snapshot(t, dataplane.Empty(), with(numbered(1, 1)))
	m.sync(t, want, false)
	m.settled(t, want)
	m.sync(t, snapshot(t, want, func(b *dataplane.Builder) { b.Delete(numbered(1, 1).Name) }), false)
	has(foreign, true)
	has(excluded, true)
	has(stale, false) // ours by its address: a run before this one left it
	m.retire(t, dataplane.Retirement{Age: forever})
	has(foreign, true)
	has(excluded, true)
}

// What others take away is found, named, and put back.
func TestDamageIsRepaired(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	want := snapshot(t, dataplane.Empty(), with(numbered(1, 2), numbered(2, 2)))
	m.sync(t, want, false)
	k := clusterKey(1, dataplane.TCP)
	real := netip.MustParseAddrPort("10.128.1.0:8080")
	odd := netip.MustParseAddrPort("10.9.9.9:1")
	for _, c := range []struct {
		object string
		damage []kernel.Op
		local  []kernel.LocalOp
	}{
		{object: "virtual server TCP 10.96.0.1:80", damage: []kernel.Op{{Verb: kernel.DeleteServer, Key: k}}},
		{
			object: "virtual server TCP 10.96.0.1:80",
			damage: []kernel.Op{{Verb: kernel.SetServer, Key: k, Server: kernel.Server{Scheduler: "sh"}}},
		},
		{
			object: "real server 10.128.1.0:8080 of virtual server TCP 10.96.0.1:80",
			damage: []kernel.Op{{Verb: kernel.DeleteReal, Key: k, Real: real}},
		},
		{
			object: "real server 10.128.1.0:8080 of virtual server TCP 10.96.0.1:80",
			damage: []kernel.Op{{Verb: kernel.SetReal, Key: k, Real: real, Weight: 7}},
		},
		{
			object: "real server 10.9.9.9:1 of virtual server TCP 10.96.0.1:80",
			damage: []kernel.Op{{Verb: kernel.AddReal, Key: k, Real: odd, Weight: 7}},
		},
		{object: "device kube-ipvs0, 10.96.0.1", local: []kernel.LocalOp{{Local: localRoute(k.Addr), Delete: true}}},
		{
			object: "device kube-ipvs0, 10.3.3.3",
			local:  []kernel.LocalOp{{Local: localRoute(netip.MustParseAddr("10.3.3.3"))}},
		},
	} {
		if _, err := m.ipvs.Apply(t.Context(), c.damage); err != nil {
			t.Fatal(err)
		}
		if _, err := m.device.Apply(t.Context(), c.local); err != nil {
			t.Fatal(err)
		}
		r := m.sync(t, want, true)
		found := false
		for _, d := range r.Repaired {
			found = found || d.Object == c.object
		}
		if !found || r.Writes == 0 {
			t.Errorf("%d writes repair %v, want %s", r.Writes, r.Repaired, c.object)
		}
		m.settled(t, want)
	}
}
