package metrics

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/servicecache"
)

func idle() (time.Time, bool) { return time.Time{}, false }

// TestNames holds the names that dashboards of kube-proxy ask for.
func TestNames(t *testing.T) {
	m := New("v0", idle)
	m.Serving(dataplane.Families())
	m.Published(snapshot(t, nil, port("a", "10.0.0.1:80")))
	result := dataplane.SyncResult{
		Plane: dataplane.NamedPlane{Family: dataplane.IPv4}, Want: m.last, Start: time.Now(),
		Triggers: []time.Time{time.Now()}, Report: dataplane.Report{
			Full: true, Failed: []dataplane.Failure{{}},
			Objects: map[string]dataplane.ObjectCount{"nat": {Held: 12, Written: 3}, "virtual servers": {Held: 5, Written: 1}},
		},
	}
	m.Synced(result)
	result.Report.Full = false
	m.Synced(result)
	result.Err = errors.New("no")
	m.Synced(result)
	m.Answered("/healthz", 503)
	m.Answered("/livez", 200)
	m.Cleaned(conntrack.Pass{Family: dataplane.IPv4, Deleted: 3})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, f := range families {
		have = append(have, f.GetName())
	}
	for name := range strings.FieldsSeq(`sync_proxy_rules_duration_seconds sync_full_proxy_rules_duration_seconds
		sync_partial_proxy_rules_duration_seconds sync_proxy_rules_last_timestamp_seconds
		sync_proxy_rules_last_queued_timestamp_seconds sync_proxy_rules_endpoint_changes_pending
		sync_proxy_rules_endpoint_changes_total sync_proxy_rules_service_changes_pending
		sync_proxy_rules_service_changes_total sync_proxy_rules_no_local_endpoints_total
		sync_proxy_rules_iptables_total sync_proxy_rules_iptables_last
		sync_proxy_rules_iptables_restore_failures_total sync_proxy_rules_iptables_partial_restore_failures_total
		network_programming_duration_seconds proxy_healthz_total proxy_livez_total
		conntrack_reconciler_sync_duration_seconds conntrack_reconciler_deleted_entries_total
		iptables_ct_state_invalid_dropped_packets_total iptables_localhost_nodeports_accepted_packets_total`) {
		if !slices.Contains(have, "kubeproxy_"+name) {
			t.Errorf("kubeproxy_%s is missing", name)
		}
	}
	// The first Sync left a port out, which the second one repeats; the third one
	// failed, and was a partial one.
	if v := testutil.ToFloat64(m.restoreFailures.WithLabelValues("IPv4")); v != 2 {
		t.Errorf("%v failed restores, want 2", v)
	}
	if v := testutil.ToFloat64(m.partialFailures.WithLabelValues("IPv4")); v != 1 {
		t.Errorf("%v failed partial restores, want 1", v)
	}
	if v := testutil.ToFloat64(m.rules.WithLabelValues("nat", "IPv4")); v != 12 {
		t.Errorf("%v rules in nat, want 12", v)
	}
	if v := testutil.ToFloat64(m.objects.WithLabelValues("virtual servers", "IPv4")); v != 5 {
		t.Errorf("%v virtual servers, want 5", v)
	}
	if v := testutil.ToFloat64(m.cleaned.WithLabelValues("IPv4")); v != 3 {
		t.Errorf("%v deleted flows, want 3", v)
	}
}

// TestPackets: the kernel's counters start anew when a rule is written, ours go
// on; each plane has its own.
func TestPackets(t *testing.T) {
	m := New("v0", idle)
	for _, step := range []struct {
		plane string
		kind  string
		have  uint64
		total float64
	}{
		{"a", dataplane.InvalidDropped, 5, 5},
		{"a", dataplane.InvalidDropped, 7, 7},
		{"b", dataplane.InvalidDropped, 1, 8},
		{"a", dataplane.InvalidDropped, 2, 10},
		{"a", dataplane.LoopbackAccepted, 9, 10},
		{"a", "of another mode", 9, 10},
	} {
		m.Packets(dataplane.SyncResult{
			Plane: dataplane.NamedPlane{Name: step.plane}, Report: dataplane.Report{Packets: map[string]uint64{step.kind: step.have}},
		})
		if v := testutil.ToFloat64(m.packets.totals[dataplane.InvalidDropped]); v != step.total {
			t.Errorf("%+v: %v packets", step, v)
		}
	}
	if v := testutil.ToFloat64(m.packets.totals[dataplane.LoopbackAccepted]); v != 9 {
		t.Errorf("%v flows on loopback, want 9", v)
	}
}

func TestKindOf(t *testing.T) {
	for object, want := range map[string]string{
		"nat chain KUBE-SVC-X, our jumps in front": "nat chain", "ipset KUBE-IPT-REJECT": "ipset",
		"virtual server tcp 10.0.0.1:80": "virtual server", "service port": "service port", "": "",
	} {
		if have := kindOf(object); have != want {
			t.Errorf("%q is of kind %q, want %q", object, have, want)
		}
	}
}

// port is a Service port with endpoints.
func port(name string, endpoints ...string) *dataplane.ServicePort {
	sp := &dataplane.ServicePort{Name: dataplane.ServicePortName{Namespace: "n", Name: name, Protocol: dataplane.TCP}}
	pool := &dataplane.Pool{Family: dataplane.IPv4}
	for _, e := range endpoints {
		ap := netip.MustParseAddrPort(e)
		pool.Endpoints = append(pool.Endpoints, dataplane.Endpoint{Addr: ap, Weight: 1})
		sp.Serving = append(sp.Serving, ap)
	}
	route := dataplane.Route{Action: dataplane.Forward, Pool: pool}
	sp.Pools = []*dataplane.Pool{pool}
	hash := uint8(len(name)) + name[0]
	sp.Frontends = []*dataplane.Frontend{{
		Kind: dataplane.ClusterIP, Family: dataplane.IPv4, Addr: netip.AddrFrom4([4]byte{10, 96, 0, hash}), Port: 80,
		Routes: [3]dataplane.Route{route, route, route},
	}}
	return sp
}

// withoutLocal is a port that has endpoints elsewhere only, and needs local
// ones for outside traffic.
func withoutLocal(name string) *dataplane.ServicePort {
	sp := port(name, "10.0.0.1:80")
	sp.Frontends = append(sp.Frontends, &dataplane.Frontend{
		Kind: dataplane.NodePort, Family: dataplane.IPv4, Port: 30000,
		Routes: [3]dataplane.Route{sp.Frontends[0].Routes[0], sp.Frontends[0].Routes[1], {Action: dataplane.Drop}},
	})
	return sp
}

func snapshot(t *testing.T, from *dataplane.Snapshot, ports ...*dataplane.ServicePort) *dataplane.Snapshot {
	t.Helper()
	if from == nil {
		from = dataplane.Empty()
	}
	b := from.Edit()
	for _, p := range ports {
		b.Put(p)
	}
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestChanges(t *testing.T) {
	m := New("v0", idle)
	m.Serving(dataplane.Families())
	expect := func(services, endpoints, pendingServices, pendingEndpoints float64) {
		t.Helper()
		for name, v := range map[string][2]float64{
			"services":          {testutil.ToFloat64(m.services), services},
			"endpoints":         {testutil.ToFloat64(m.endpoints), endpoints},
			"pending services":  {testutil.ToFloat64(m.pendingServices), pendingServices},
			"pending endpoints": {testutil.ToFloat64(m.pendingEndpoints), pendingEndpoints},
		} {
			if v[0] != v[1] {
				t.Errorf("%s: %v, want %v", name, v[0], v[1])
			}
		}
	}
	m.Came(servicecache.Services, 2)
	m.Came(servicecache.EndpointSlices, 3)
	m.Came("Nodes", 1)
	expect(2, 3, 0, 0)
	first := snapshot(t, nil, port("a", "10.0.0.1:80"), port("b", "10.0.0.3:80"))
	m.Published(first)
	expect(2, 3, 2, 0)
	second := snapshot(t, first, port("a", "10.0.0.2:80"))
	m.Published(second)
	expect(2, 3, 2, 1)

	done := func(f dataplane.Family, s *dataplane.Snapshot) {
		m.Synced(dataplane.SyncResult{Plane: dataplane.NamedPlane{Family: f}, Want: s, Start: time.Now()})
	}
	done(dataplane.IPv4, first) // not the newest
	done(dataplane.IPv4, second)
	expect(2, 3, 2, 1)
	done(dataplane.IPv6, second)
	expect(2, 3, 0, 0)
}

func TestNoLocalEndpointsIsCountedUpAndDown(t *testing.T) {
	m := New("v0", idle)
	count := func() float64 { return testutil.ToFloat64(m.noLocal.WithLabelValues("external", "IPv4")) }
	first := snapshot(t, nil, withoutLocal("a"), port("b", "10.0.0.1:80"))
	m.Published(first)
	if n := count(); n != 1 {
		t.Errorf("%v ports without local endpoints, want 1", n)
	}
	m.Published(snapshot(t, first, port("a", "10.0.0.1:80")))
	if n := count(); n != 0 {
		t.Errorf("%v ports without local endpoints, want none", n)
	}
}

// TestProgrammingLatencyIsNeverNegative: kubernetes#82378, clocks differ.
func TestProgrammingLatencyIsNeverNegative(t *testing.T) {
	m := New("v0", idle)
	s := snapshot(t, nil, port("a", "10.0.0.1:80"))
	m.Synced(dataplane.SyncResult{
		Plane: dataplane.NamedPlane{Family: dataplane.IPv4}, Want: s, Start: time.Now(), Triggers: []time.Time{time.Now().Add(time.Hour)},
	})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kubeproxy_network_programming_duration_seconds" {
			if h := f.GetMetric()[0].GetHistogram(); h.GetSampleSum() != 0 || h.GetSampleCount() != 1 {
				t.Errorf("a change from the future was counted as %v", h)
			}
			return
		}
	}
	t.Error("no programming latency")
}

// TestSeriesDoNotGrow: no label names an object (kubernetes#16103).
func TestSeriesDoNotGrow(t *testing.T) {
	m := New("v0", idle)
	s := dataplane.Empty()
	series := func() (n int) {
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	publish := func(name string) {
		s = snapshot(t, s, withoutLocal(name))
		m.Published(s)
		b := s.Edit()
		b.Delete(withoutLocal(name).Name)
		s, _ = b.Build()
		m.Published(s)
	}
	publish("a")
	before := series()
	for _, name := range []string{"b", "c", "d", "e"} {
		publish(name)
	}
	if after := series(); after != before {
		t.Errorf("%d series, were %d", after, before)
	}
}
