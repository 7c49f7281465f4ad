package servicecache

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/modules/dataplane"
)

func clientIP(seconds *int32) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
	}
}

func firstPort(t testing.TB, s *dataplane.Snapshot) *dataplane.ServicePort {
	t.Helper()
	for sp := range s.ServicePorts() {
		return sp
	}
	t.Fatal("no ServicePort")
	return nil
}

// The timeout is the object's (kubernetes#35677), whether endpoints come before
// or after the Service (kubernetes#25314).
// Proves S6.3, S6.5.
func TestAffinity(t *testing.T) {
	for name, tt := range map[string]struct {
		option serviceOption
		want   time.Duration
	}{
		"none":       {func(*corev1.Service) {}, 0},
		"default":    {func(s *corev1.Service) { s.Spec.SessionAffinity = "ClientIP" }, 3 * time.Hour},
		"no timeout": {clientIP(nil), 3 * time.Hour},
		"1 s":        {clientIP(new(int32(1))), time.Second},
		"3 s":        {clientIP(new(int32(3))), 3 * time.Second},
		"the most":   {clientIP(new(int32(86400))), 24 * time.Hour},
		"too long":   {clientIP(new(int32(86401))), 24 * time.Hour},
		"no time":    {clientIP(new(int32(0))), 3 * time.Hour},
		"negative":   {clientIP(new(int32(-5))), 3 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, testConfig(), testService("s", tt.option))
			for range 2 {
				if got := firstPort(t, build(c)).Affinity; got != tt.want {
					t.Errorf("affinity %s, want %s", got, tt.want)
				}
				set(t, c, testSlice("s", "1", ep(e1, "n1", "rs-")))
			}
		})
	}
}

func TestScheduler(t *testing.T) {
	s := testService("s")
	s.Annotations = map[string]string{SchedulerAnnotation: " wlc "}
	if got := firstPort(t, build(newCache(t, testConfig(), s))).Scheduler; got != "wlc" {
		t.Errorf("scheduler %q, want wlc", got)
	}
}

// healthCheckNodePort counts distinct ready addresses on this node, by family
// (kubernetes#44311: none of those that terminate).
// Proves S8.1.
func TestHealthCheck(t *testing.T) {
	health := func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 32000 }
	name := dataplane.ServiceName{Namespace: "ns", Name: "s"}
	get := func(c *Cache) dataplane.HealthCheck {
		for n, h := range build(c).HealthChecks() {
			if n == name {
				return h
			}
		}
		return dataplane.HealthCheck{}
	}
	two := []discoveryv1.EndpointPort{{Port: new(int32(8080))}, {Port: new(int32(8081))}}
	c := newCache(t, testConfig(), testService("s", exposed, externalLocal, health),
		changed(testSlice("s", "1", ep(e1, "n1", "rs-"), ep(e2, "n2", "rs-"), ep("10.244.1.3", "n1", "-st"), ep("10.244.1.4", "n1", "rs-")), anyPort(two...)),
		testSlice("s", "2", ep(e1, "n1", "rs-")), testSlice("s", "6", ep("fd00:244:0:1::1", "n1", "rs-")))
	if got, want := get(c), (dataplane.HealthCheck{Port: 32000, Serves4: true, Serves6: true, LocalReady4: 2, LocalReady6: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	c.DeleteEndpointSlice("ns", "1")
	c.DeleteEndpointSlice("ns", "2")
	if got, want := get(c), (dataplane.HealthCheck{Port: 32000, Serves4: true, Serves6: true, LocalReady6: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	four := func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] }
	set(t, c, testService("s", exposed, externalLocal, health, four))
	if got, want := get(c), (dataplane.HealthCheck{Port: 32000, Serves4: true}); got != want {
		t.Errorf("a Service of one family: got %+v, want %+v", got, want)
	}
	set(t, c, testService("s", exposed, health))
	if got := get(c); got != (dataplane.HealthCheck{}) {
		t.Errorf("externalTrafficPolicy Cluster has %+v", got)
	}
	set(t, c, testService("s", exposed, externalLocal, health))
	build(c)
	c.DeleteService(name)
	if got := get(c); got != (dataplane.HealthCheck{}) {
		t.Errorf("a deleted Service has %+v", got)
	}
}

func TestNode(t *testing.T) {
	config := testConfig()
	config.DetectLocal, config.DropInvalid = DetectNodeCIDR, true
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	c.SetLocal(Local{Addresses: testLocal().Addresses})
	n := build(c).Node()
	if n.Name != "n1" || n.Mark != 0x4000 || !n.DropInvalid || len(n.PrimaryIPs) != 0 || len(n.Detectors) != 0 || c.NodeStatus().Known {
		t.Errorf("unknown node: %+v", n)
	}
	set(t, c, testNode(), testCIDR("10.96.0.0/16", "fd00:96::/112"), Local{Addresses: testLocal().Addresses, ConntrackLiberal: true})
	n = build(c).Node()
	prefixes := func(ss ...string) (out []netip.Prefix) {
		for _, s := range ss {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	addresses := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr(nodeIP4), netip.MustParseAddr("::1"), netip.MustParseAddr(nodeIP6)}
	want := &dataplane.Node{
		Name: "n1", PrimaryIPs: []netip.Addr{addresses[1], addresses[3]}, Addresses: addresses,
		NodePortAddrs: []netip.Addr{addresses[1], addresses[3]},
		PodCIDRs:      prefixes("10.244.1.0/24", "fd00:244:0:1::/64"), ServiceCIDRs: prefixes("10.96.0.0/16", "fd00:96::/112"),
		Detectors: []dataplane.Detector{
			{Family: dataplane.IPv4, Prefix: netip.MustParsePrefix("10.244.1.0/24")},
			{Family: dataplane.IPv6, Prefix: netip.MustParsePrefix("fd00:244:0:1::/64")},
		},
		DropUnallocated: true, Mark: 0x4000,
	}
	if !reflect.DeepEqual(n, want) {
		t.Errorf("got  %+v\nwant %+v", n, want)
	}
	// kubernetes#111321: the node comes back with another range; in between it
	// goes on as it was.
	c.DeleteNode("n1")
	if build(c).Node() != n || c.NodeStatus().Known {
		t.Error("a deleted Node changes forwarding, or is still known")
	}
	other := testNode(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.9.0/24"} })
	other.Name = "n2"
	set(t, c, other)
	if build(c).Node() != n {
		t.Error("another Node changes this one")
	}
	other.Name = "n1"
	set(t, c, other)
	if got := build(c).Node().Detectors; len(got) != 1 || got[0].Prefix.String() != "10.244.9.0/24" {
		t.Errorf("detectors %v", got)
	}
	c.DeleteServiceCIDR("kubernetes")
	if got := build(c).Node().ServiceCIDRs; len(got) != 0 {
		t.Errorf("ServiceCIDRs %v", got)
	}
	set(t, c, testNode(func(n *corev1.Node) {
		n.DeletionTimestamp = &metav1.Time{}
		n.Spec.Taints = []corev1.Taint{{Key: toBeDeletedTaint}}
	}))
	if s := c.NodeStatus(); s != (NodeStatus{true, true, true}) {
		t.Errorf("status %+v", s)
	}
}

func TestNodeIPsOfConfig(t *testing.T) {
	config := testConfig()
	config.NodeIPs = []netip.Addr{netip.MustParseAddr("10.9.9.9")}
	if got := addrs(build(newCache(t, config)).Node().PrimaryIPs); !equal(got, []string{"10.9.9.9", nodeIP6}) {
		t.Errorf("primary IPs %v", got)
	}
}

// kubernetes#82378: only changes that were stamped after the start count, and
// no deletion.
func TestTriggers(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := testConfig()
	config.Start = start
	c := newCache(t, config, testService("s"))
	build(c)
	stamped := func(at time.Time, e string) *discoveryv1.EndpointSlice {
		return changed(testSlice("s", "1", ep(e, "n1", "rs-")), func(s *discoveryv1.EndpointSlice) {
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}
		})
	}
	accepted := start.Add(time.Hour)
	step := func(want ...time.Time) {
		t.Helper()
		s, _ := c.Build(accepted)
		if !equal(s.Triggers(), want) || !s.Since().Equal(accepted) {
			t.Errorf("triggers %v since %s, want %v since %s", s.Triggers(), s.Since(), want, accepted)
		}
	}
	set(t, c, stamped(start.Add(-time.Hour), e1))
	step()
	set(t, c, stamped(start.Add(time.Minute), e2))
	step(start.Add(time.Minute))
	set(t, c, stamped(start.Add(time.Minute), e1)) // somebody else's edit
	step()
	s := build(c)
	set(t, c, stamped(start.Add(2*time.Minute), e1)) // nothing comes of it
	if build(c) != s {
		t.Error("a stamp alone makes a snapshot")
	}
	c.DeleteEndpointSlice("ns", "1")
	step()
}

func TestConfigErrors(t *testing.T) {
	_, err := New(Config{DetectLocal: DetectClusterCIDR, MasqueradeBit: 32, ExternalIPs: 9, NodePortAddresses: []string{"x"}})
	for _, want := range []string{"cluster CIDR", "masquerade bit 32", "externalIP policy", `"x"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	if _, err := New(Config{DetectLocal: DetectBridgeInterface}); err == nil {
		t.Error("no error without an interface")
	}
	if _, err := New(Config{DetectLocal: 99}); err == nil {
		t.Error("no error for an unknown way to detect pods")
	}
}
