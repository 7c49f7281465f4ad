package ipvs

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// snapshot changes an older one.
func snapshot(t *testing.T, old *dataplane.Snapshot, edit func(*dataplane.Builder)) *dataplane.Snapshot {
	t.Helper()
	b := old.Edit()
	b.SetNode(&dataplane.Node{Name: "node", Mark: 1 << 14})
	edit(b)
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func with(sps ...*dataplane.ServicePort) func(*dataplane.Builder) {
	return func(b *dataplane.Builder) {
		for _, sp := range sps {
			b.Put(sp)
		}
	}
}

// clusterKey is the virtual server of a numbered Service's ClusterIP.
func clusterKey(i int, p dataplane.Protocol) kernel.Key {
	return kernel.Key{Protocol: p, Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80}
}

// reals are the real servers of a virtual server, with their weights.
func (m *memory) reals(t *testing.T, k kernel.Key) string {
	t.Helper()
	v, ok, err := m.ipvs.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return "none"
	}
	var all []string
	for _, r := range v.Reals {
		text, _, _ := strings.Cut(r.Addr.String(), ":")
		all = append(all, text+"="+string('0'+rune(r.Weight)))
	}
	return strings.Join(all, " ")
}

// connections sets how many there are at the endpoint of a numbered Service.
func (m *memory) connections(t *testing.T, k kernel.Key, endpoint, active, inactive int) {
	t.Helper()
	a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128, k.Addr.As4()[3], byte(endpoint)}), 8080)
	if err := m.ipvs.Connections(k, kernel.Real{Addr: a, Active: active, Inactive: inactive}); err != nil {
		t.Fatal(err)
	}
}

// later syncs again after some time.
func (m *memory) later(t *testing.T, want *dataplane.Snapshot, after time.Duration) dataplane.Report {
	t.Helper()
	m.now = m.now.Add(after)
	return m.sync(t, want, false)
}

// kubernetes#57841, #71071, #99162: a TCP endpoint that leaves keeps its
// connections, and goes when they have ended or when its time is over.
// Proves S7.8.
func TestDraining(t *testing.T) {
	for _, c := range []struct {
		name             string
		active, inactive int
		// gone is when it must be gone, at a check every ten seconds.
		gone time.Duration
	}{
		{"idle", 0, 0, 10 * time.Second},
		{"closing", 0, 1, 2 * time.Minute},
		{"established", 1, 0, 15 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMemory(dataplane.IPv4, Options{})
			m.sync(t, snapshot(t, dataplane.Empty(), with(numbered(1, 2))), false)
			k := clusterKey(1, dataplane.TCP)
			m.connections(t, k, 1, c.active, c.inactive)
			want := snapshot(t, m.last, with(numbered(1, 1)))
			r := m.sync(t, want, false)
			if r.Again.IsZero() || r.Objects[kindDraining].Held != 1 {
				t.Errorf("the report does not tell what drains: %+v", r)
			}
			const draining, gone = "10.128.1.0=1 10.128.1.1=0", "10.128.1.0=1"
			for passed := time.Duration(0); passed < c.gone; passed += 10 * time.Second {
				if got := m.reals(t, k); got != draining {
					t.Fatalf("after %s: %s, want %s", passed, got, draining)
				}
				m.settled(t, want)
				r = m.later(t, want, 10*time.Second)
			}
			if got := m.reals(t, k); got != gone {
				t.Errorf("after %s: %s, want %s", c.gone, got, gone)
			}
			if !r.Again.IsZero() || r.Objects[kindDraining].Held != 0 {
				t.Errorf("the report tells that something drains still: %+v", r)
			}
			m.settled(t, want)
		})
	}
}

// The bound is a setting.
// Proves S7.8.
func TestDrainIsBounded(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{Drain: 30 * time.Second})
	m.sync(t, snapshot(t, dataplane.Empty(), with(numbered(1, 2))), false)
	m.connections(t, clusterKey(1, dataplane.TCP), 1, 9, 0)
	want := snapshot(t, m.last, with(numbered(1, 1)))
	m.sync(t, want, false)
	m.later(t, want, 15*time.Second)
	if got := m.reals(t, clusterKey(1, dataplane.TCP)); !strings.HasSuffix(got, "=0") {
		t.Errorf("after 15 s: %s", got)
	}
	m.later(t, want, 15*time.Second)
	if got := m.reals(t, clusterKey(1, dataplane.TCP)); got != "10.128.1.0=1" {
		t.Errorf("after 30 s: %s", got)
	}
}

// kubernetes#71514, #76664: UDP endpoints go at once, and so do those behind an
// alias, where established connections do not need IPVS.
// Proves S7.8.
func TestWhatDoesNotDrain(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	udp := func(endpoints int) *dataplane.ServicePort {
		sp := numbered(2, endpoints)
		sp.Name.Protocol = dataplane.UDP
		return sp
	}
	m.sync(t, snapshot(t, dataplane.Empty(), with(numbered(1, 2), udp(2))), false)
	nodePort := kernel.Key{Protocol: dataplane.TCP, Addr: nodePortAlias(dataplane.IPv4, false), Port: 20001}
	m.connections(t, clusterKey(2, dataplane.UDP), 1, 0, 5)
	want := snapshot(t, m.last, with(numbered(1, 1), udp(1)))
	m.sync(t, want, false)
	if got := m.reals(t, clusterKey(2, dataplane.UDP)); got != "10.128.2.0=1" {
		t.Errorf("UDP: %s", got)
	}
	if got := m.reals(t, nodePort); got != "10.128.1.0=1" {
		t.Errorf("NodePort: %s", got)
	}
}

// The last endpoint drains too: new flows are rejected, and the virtual server
// goes with it.
func TestLastEndpointDrains(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	m.sync(t, snapshot(t, dataplane.Empty(), with(numbered(1, 1))), false)
	k := clusterKey(1, dataplane.TCP)
	m.connections(t, k, 0, 1, 0)
	empty := numbered(1, 0)
	empty.Pools = nil
	for _, f := range empty.Frontends {
		for o := range f.Routes {
			f.Routes[o] = dataplane.Route{Action: dataplane.Reject}
		}
	}
	want := snapshot(t, m.last, with(empty))
	m.sync(t, want, false)
	if got := m.reals(t, k); got != "10.128.1.0=0" {
		t.Errorf("with a connection: %s", got)
	}
	m.settled(t, want)
	flow := dataplane.Flow{
		Src: netip.MustParseAddrPort("10.1.1.1:5000"), Dst: netip.MustParseAddrPort("10.96.0.1:80"),
		Protocol: dataplane.TCP, InInterface: "eth0",
	}
	e, err := m.Explain(t.Context(), flow)
	if err == nil {
		err = want.Decide(flow).Agrees(e)
	}
	if err != nil {
		t.Error(err)
	}
	m.connections(t, k, 0, 0, 0)
	m.later(t, want, 10*time.Second)
	if got := m.reals(t, k); got != "none" {
		t.Errorf("without a connection: %s", got)
	}
	m.settled(t, want)
}

// A process that starts does not know since when what it finds has drained, and
// gives it the whole time; an endpoint that comes back takes flows again.
func TestDrainingAfterRestart(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	m.sync(t, snapshot(t, dataplane.Empty(), with(numbered(1, 3))), false)
	k := clusterKey(1, dataplane.TCP)
	m.connections(t, k, 1, 1, 0)
	m.connections(t, k, 2, 1, 0)
	m.sync(t, snapshot(t, m.last, with(numbered(1, 1))), false)
	want := m.last
	m.open(dataplane.IPv4, Options{})
	if r := m.sync(t, want, false); r.Writes != 0 || r.Objects[kindDraining].Held != 2 {
		t.Errorf("a restart gives %+v", r)
	}
	m.sync(t, snapshot(t, want, with(numbered(1, 2))), false)
	if got := m.reals(t, k); got != "10.128.1.0=1 10.128.1.1=1 10.128.1.2=0" {
		t.Errorf("one came back: %s", got)
	}
	m.later(t, m.last, 15*time.Minute)
	if got := m.reals(t, k); got != "10.128.1.0=1 10.128.1.1=1" {
		t.Errorf("after 15 minutes: %s", got)
	}
}
