package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
)

// try syncs and returns the report whatever failed.
func (m *memory) try(t *testing.T, want *dataplane.Snapshot) dataplane.Report {
	t.Helper()
	m.now = m.now.Add(time.Second)
	r, err := m.Sync(t.Context(), dataplane.SyncRequest{Now: m.now, Want: want})
	if err != nil {
		t.Fatalf("sync: %v", err)
	}
	return r
}

// broken has an endpoint that the kernel does not accept.
func broken(i int) *dataplane.ServicePort {
	sp := numbered(i, 2)
	sp.Pools[0].Endpoints[1].Addr = netip.MustParseAddrPort("224.0.0.9:8080")
	return sp
}

// kubernetes#36652: what one ServicePort does wrong stops no other one; its
// older version stays, and it is tried again.
func TestIsolation(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	m.sync(t, snapshot(t, dataplane.Empty(), with(numbered(1, 2), numbered(2, 2))), false)
	want := snapshot(t, m.last, with(broken(1), numbered(2, 3), broken(3), numbered(4, 1)))
	r := m.try(t, want)
	var failed []string
	for _, f := range r.Failed {
		failed = append(failed, f.Name.Name)
		if !strings.Contains(f.Err.Error(), "224.0.0.9:8080") {
			t.Errorf("the failure does not name the endpoint: %v", f.Err)
		}
	}
	if !slices.Equal(failed, []string{"svc-00001", "svc-00003"}) || r.Again.IsZero() {
		t.Errorf("failed %v, again at %v", failed, r.Again)
	}
	for i, reals := range map[int]string{
		1: "10.128.1.0=1 10.128.1.1=1", 2: "10.128.2.0=1 10.128.2.1=1 10.128.2.2=1", 3: "none", 4: "10.128.4.0=1",
	} {
		if got := m.reals(t, clusterKey(i, dataplane.TCP)); got != reals {
			t.Errorf("Service %d has %s, want %s", i, got, reals)
		}
	}
	m.now = m.now.Add(retryAfter)
	if r := m.try(t, want); len(r.Failed) != 2 {
		t.Errorf("tried again: failed %v", r.Failed)
	}
	mended := snapshot(t, want, with(numbered(1, 1), numbered(3, 1)))
	m.sync(t, mended, false)
	m.later(t, mended, 20*time.Second)
	m.settled(t, mended)
}

// What the mode has no rules for fails by itself, and nobody is let through.
func TestUnknownShapes(t *testing.T) {
	closed := &dataplane.SourceRanges{}
	for name, change := range map[string]func(*dataplane.ServicePort){
		"NodePort with source ranges": func(sp *dataplane.ServicePort) { sp.Frontends[1].Sources = closed },
		"the node is refused": func(sp *dataplane.ServicePort) {
			sp.Frontends[0].Routes[dataplane.FromNode] = dataplane.Route{Action: dataplane.Reject}
		},
		"a ClusterIP that drops outsiders": func(sp *dataplane.ServicePort) {
			sp.Frontends[0].Routes[dataplane.FromOutside] = dataplane.Route{Action: dataplane.Drop}
		},
		"the node is not masqueraded": func(sp *dataplane.ServicePort) {
			sp.Frontends[1].Routes[dataplane.FromNode].Masquerade = dataplane.MasqueradeNo
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(dataplane.IPv4, Options{})
			sp := numbered(1, 1)
			change(sp)
			r := m.try(t, snapshot(t, dataplane.Empty(), with(sp, numbered(2, 1))))
			if len(r.Failed) != 1 || r.Failed[0].Name != sp.Name {
				t.Errorf("failed %v", r.Failed)
			}
			if got := m.reals(t, clusterKey(1, dataplane.TCP)); got != "none" {
				t.Errorf("it has a virtual server: %s", got)
			}
			if got := m.reals(t, clusterKey(2, dataplane.TCP)); got != "10.128.2.0=1" {
				t.Errorf("the other one has %s", got)
			}
		})
	}
}

// Two addresses with one alias: the second is refused (see DESIGN.md).
func TestAliasConflict(t *testing.T) {
	external := func(i int, a string) *dataplane.ServicePort {
		sp := numbered(i, 1)
		sp.Frontends[1] = &dataplane.Frontend{
			Kind: dataplane.ExternalIP, Family: dataplane.IPv4, Addr: netip.MustParseAddr(a), Port: 443,
			Routes: sp.Frontends[1].Routes,
		}
		return sp
	}
	m := newMemory(dataplane.IPv4, Options{})
	r := m.try(t, snapshot(t, dataplane.Empty(), with(external(1, "192.168.1.1"), external(2, "200.168.1.1"), external(3, "192.168.1.2"))))
	if len(r.Failed) != 1 || !strings.Contains(r.Failed[0].Err.Error(), "belongs to default/svc-0000") {
		t.Errorf("failed %v", r.Failed)
	}
}

// Each Service may have a scheduler of its own. One that the kernel does not
// have is a warning, once, and the default serves.
func TestSchedulers(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{Scheduler: "lc"})
	var sps []*dataplane.ServicePort
	for i, name := range append(kerneltest.Schedulers(), "", "fastest") {
		sp := numbered(i, 1)
		sp.Scheduler = name
		sps = append(sps, sp)
	}
	want := snapshot(t, dataplane.Empty(), with(sps...))
	r := m.sync(t, want, false)
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], `"fastest"`) {
		t.Errorf("warnings %q", r.Warnings)
	}
	for i, sp := range sps {
		wish := sp.Scheduler
		if wish == "" || wish == "fastest" {
			wish = "lc"
		}
		v, _, err := m.ipvs.Get(t.Context(), clusterKey(i, dataplane.TCP))
		if err != nil || v.Server.Scheduler != wish || (v.Server.Flags == kernel.HashPort) != (wish == "mh") {
			t.Errorf("wish %q gives %s (%v)", sp.Scheduler, v.Server, err)
		}
	}
	m.settled(t, want)
	other := numbered(0, 1)
	other.Scheduler = "sed"
	want = snapshot(t, want, with(other))
	if r := m.sync(t, want, false); len(r.Warnings) != 0 {
		t.Errorf("warnings again: %q", r.Warnings)
	}
	m.settled(t, want)
}
