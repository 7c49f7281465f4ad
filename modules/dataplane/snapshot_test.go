package dataplane

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// simplePort is a ServicePort with one ClusterIP and one endpoint.
func simplePort(i int) *ServicePort {
	p := pool(Cluster, "10.244.2.1:80")
	r := to(p, MasqueradeNo)
	sp := port(fmt.Sprintf("svc-%d", i), TCP, []*Pool{p}, frontend(ClusterIP, fmt.Sprintf("10.96.%d.%d", i/250, i%250+1), 80, r, r, r))
	if i < 20 && i%7 == 0 { // those that go first are few
		sp.Priority = PriorityDNS
	}
	return sp
}

func build(t testing.TB, b *Builder) *Snapshot {
	t.Helper()
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Any series of edits gives the snapshot that a plain map would, changes
// between any two versions included, and no edit touches an older version.
func TestSnapshotIsAnImmutableMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			s *Snapshot
			m map[ServicePortName]*ServicePort
		}
		vs := []version{{Empty(), map[ServicePortName]*ServicePort{}}}
		for range rapid.IntRange(1, 8).Draw(t, "edits") {
			from := vs[rapid.IntRange(0, len(vs)-1).Draw(t, "from")]
			b, m := from.s.Edit(), maps.Clone(from.m)
			for range rapid.IntRange(0, 12).Draw(t, "changes") {
				sp := simplePort(rapid.IntRange(0, 40).Draw(t, "i"))
				if rapid.Bool().Draw(t, "delete") {
					b.Delete(sp.Name)
					delete(m, sp.Name)
				} else {
					b.Put(sp)
					m[sp.Name] = sp
				}
			}
			s, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			vs = append(vs, version{s, m})
		}
		for _, v := range vs {
			checkContents(t, v.s, v.m)
			for _, o := range vs {
				checkChanges(t, o.s, v.s, o.m, v.m)
			}
		}
	})
}

func checkContents(t *rapid.T, s *Snapshot, m map[ServicePortName]*ServicePort) {
	seen := 0
	last := PriorityAPIServer
	for sp := range s.ServicePorts() {
		seen++
		if m[sp.Name] != sp {
			t.Fatalf("%s is not the version that was put", sp.Name)
		}
		if sp.Priority > last {
			t.Fatalf("%s of priority %d after one of %d", sp.Name, sp.Priority, last)
		}
		last = sp.Priority
		if got, ok := s.Lookup(sp.Frontends[0].Key(TCP)); !ok || got.ServicePort != sp {
			t.Fatalf("%s is not found by its ClusterIP", sp.Name)
		}
	}
	ips := 0
	for a := range s.ClusterIPs() {
		ips++
		if !s.IsClusterIP(a) || !s.IsServiceIP(a) {
			t.Fatalf("%s is listed but not known", a)
		}
	}
	if seen != len(m) || s.Len() != len(m) || ips != len(m) {
		t.Fatalf("%d ServicePorts, Len %d, %d ClusterIPs; want %d", seen, s.Len(), ips, len(m))
	}
}

func checkChanges(t *rapid.T, old, now *Snapshot, mo, mn map[ServicePortName]*ServicePort) {
	got := make(map[ServicePortName]bool)
	for c := range now.ChangesSince(old) {
		if got[c.Name] {
			t.Fatalf("%s changes twice", c.Name)
		}
		got[c.Name] = true
		if c.Old != mo[c.Name] || c.New != mn[c.Name] || c.Old == c.New {
			t.Fatalf("wrong change of %s", c.Name)
		}
	}
	for n := range mo {
		if mo[n] != mn[n] && !got[n] {
			t.Fatalf("the change of %s is missing", n)
		}
	}
	for n := range mn {
		if mo[n] != mn[n] && !got[n] {
			t.Fatalf("the change of %s is missing", n)
		}
	}
}

func TestBuildLeavesOutWhatIsWrongAndKeepsTheRest(t *testing.T) {
	good := simplePort(1)
	for _, tt := range []struct {
		name, want string
		spoil      func(*ServicePort)
	}{
		{"address taken", "is taken by ns/svc-1:p/TCP", func(sp *ServicePort) { sp.Frontends[0].Addr = good.Frontends[0].Addr }},
		{"protocol", "carries no Services", func(sp *ServicePort) { sp.Name.Protocol = ICMP }},
		{"empty pool", "no endpoints", func(sp *ServicePort) { sp.Pools[0].Endpoints = nil }},
		{"two pools of a kind", "two pools", func(sp *ServicePort) { sp.Pools = append(sp.Pools, pool(Cluster, "10.244.2.2:80")) }},
		{"strange pool", "does not have", func(sp *ServicePort) { sp.Pools = nil }},
		{"endpoint of the other family", "is not IPv4", func(sp *ServicePort) {
			sp.Pools[0].Endpoints[0].Addr = netip.MustParseAddrPort("[fd00::1]:80")
		}},
		{"endpoint port 0", "port 0", func(sp *ServicePort) { sp.Pools[0].Endpoints[0].Addr = netip.MustParseAddrPort("10.0.0.1:0") }},
		{"weight", "weight 0", func(sp *ServicePort) { sp.Pools[0].Endpoints[0].Weight = 0 }},
		{"remote endpoint in a Local pool", "not on this node", func(sp *ServicePort) { sp.Pools[0].Scope = Local }},
		{"no address", "not a usable", func(sp *ServicePort) { sp.Frontends[0].Addr = netip.Addr{} }},
		{"NodePort with an address", "no address of its own", func(sp *ServicePort) { sp.Frontends[0].Kind = NodePort }},
		{"port 0", "port 0", func(sp *ServicePort) { sp.Frontends[0].Port = 0 }},
		{"no route", "route from outside", func(sp *ServicePort) { sp.Frontends[0].Routes[FromOutside] = Route{} }},
		{"same frontend twice", "listed twice", func(sp *ServicePort) { sp.Frontends = append(sp.Frontends, sp.Frontends[0]) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := Empty().Edit()
			bad := simplePort(2)
			tt.spoil(bad)
			b.Put(bad)
			b.Put(good)
			s, err := b.Build()
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "svc-2") {
				t.Errorf("error %v, want one that names svc-2 and says %q", err, tt.want)
			}
			if sp, ok := s.ServicePort(good.Name); !ok || sp != good || s.Len() != 1 {
				t.Errorf("want %s alone in the snapshot, which has %d", good.Name, s.Len())
			}
		})
	}
}

// An address that moves between Services in one edit is no conflict.
func TestBuildMovesAFrontend(t *testing.T) {
	a := simplePort(1)
	b := Empty().Edit()
	b.Put(a)
	s := build(t, b)
	z := simplePort(2)
	z.Frontends[0].Addr = a.Frontends[0].Addr
	b = s.Edit()
	b.Put(z)
	b.Delete(a.Name)
	s = build(t, b)
	if m, ok := s.Lookup(z.Frontends[0].Key(TCP)); !ok || m.ServicePort != z {
		t.Error("the frontend did not move")
	}
}

func TestAddressChanges(t *testing.T) {
	b := Empty().Edit()
	b.Put(simplePort(1))
	b.Ignore(netip.MustParseAddr("10.96.0.99"), true)
	old := build(t, b)
	b = old.Edit()
	b.Delete(simplePort(1).Name)
	b.Put(simplePort(2))
	b.Ignore(netip.MustParseAddr("10.96.0.99"), false)
	now := build(t, b)
	got := maps.Collect(now.ClusterIPChangesSince(old))
	want := map[netip.Addr]bool{netip.MustParseAddr("10.96.0.2"): false, netip.MustParseAddr("10.96.0.3"): true}
	if !maps.Equal(got, want) {
		t.Errorf("ClusterIP changes %v, want %v", got, want)
	}
	ignored := maps.Collect(now.IgnoredChangesSince(old))
	if !maps.Equal(ignored, map[netip.Addr]bool{netip.MustParseAddr("10.96.0.99"): false}) {
		t.Errorf("ignored changes %v", ignored)
	}
	if n := len(slices.Collect(old.Ignored())); n != 1 {
		t.Errorf("the old version has %d ignored addresses", n)
	}
}

func TestHealthChecks(t *testing.T) {
	n := ServiceName{"ns", "web"}
	b := Empty().Edit()
	b.PutHealthCheck(n, HealthCheck{Port: 32000, LocalReady4: 2})
	s := build(t, b)
	h := maps.Collect(s.HealthChecks())[n]
	if h.LocalReady(IPv4) != 2 || h.LocalReady(IPv6) != 0 || s.HealthChecksEqual(Empty()) || !s.HealthChecksEqual(s) {
		t.Errorf("health check %+v", h)
	}
	b = s.Edit()
	b.PutHealthCheck(n, HealthCheck{})
	if !build(t, b).HealthChecksEqual(Empty()) {
		t.Error("the health check was not removed")
	}
}

// The price of one change to a snapshot and of finding it again, by the number
// of ServicePorts that do not change.
func BenchmarkOneChange(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		e := Empty().Edit()
		for i := range n {
			e.Put(simplePort(i))
		}
		s := build(b, e)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e := s.Edit()
				e.Put(simplePort(5))
				next := build(b, e)
				for c := range next.ChangesSince(s) {
					if c.New == nil {
						b.Fatal("a deletion")
					}
				}
			}
		})
	}
}
