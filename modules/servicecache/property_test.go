package servicecache

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
)

// The little world of the property: so few names and addresses that Services
// meet in conflicts, and slices come before their Service and stay after it.
func drawService(t *rapid.T) *corev1.Service {
	pick := func(name string, from ...string) string { return rapid.SampledFrom(from).Draw(t, name) }
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: pick("service", "a", "b", "c", "d"), CreationTimestamp: metav1.Unix(int64(rapid.IntRange(1, 3).Draw(t, "created")), 0),
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceType(pick("type", "ClusterIP", "ClusterIP", "NodePort", "NodePort", "LoadBalancer", "LoadBalancer", "ExternalName")),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicy(pick("eTP", "Cluster", "Local")),
			SessionAffinity:       corev1.ServiceAffinity(pick("affinity", "None", "ClientIP")),
			ClusterIPs: rapid.SampledFrom([][]string{
				{"10.96.0.1"}, {"10.96.0.2", "fd00:96::2"}, {"fd00:96::3", "10.96.0.3"}, {"fd00:96::4"}, {"10.96.0.4", "fd00:96::5"}, {"None"}, {}, {"10.96.0.4", "10.96.0.5"},
			}).Draw(t, "clusterIPs"),
			HealthCheckNodePort:      rapid.SampledFrom([]int32{0, 32001, 32002}).Draw(t, "health"),
			ExternalIPs:              drawAddrs(t, "externalIPs"),
			LoadBalancerSourceRanges: rapid.SliceOfN(rapid.SampledFrom([]string{"10.0.0.0/8", " 192.168.0.0/16", "fd00::/8", "foo", "", "0.0.0.0/0"}), 0, 2).Draw(t, "ranges"),
		},
	}
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	local := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = rapid.SampledFrom([]*corev1.ServiceInternalTrafficPolicy{nil, &local}).Draw(t, "iTP")
	for _, ip := range drawAddrs(t, "ingress") {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	if one(t, 6, "labelled") {
		s.Labels = map[string]string{proxyNameLabel: "x"}
	}
	for i := range rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(t, "ports") {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: pick("port", "", "x", "y"), Protocol: corev1.Protocol(pick("protocol", "TCP", "UDP", "SCTP", "")),
			Port: int32(80 + rapid.IntRange(0, 1).Draw(t, "number")), NodePort: rapid.SampledFrom([]int32{0, 30000, int32(30001 + i)}).Draw(t, "nodePort"),
		})
	}
	return s
}

// one is true once in n times; rapid draws small numbers more often.
func one(t *rapid.T, n int, name string) bool {
	choices := make([]bool, n)
	choices[0] = true
	return rapid.SampledFrom(choices).Draw(t, name)
}

func drawAddrs(t *rapid.T, name string) []string {
	return rapid.SliceOfN(rapid.SampledFrom([]string{
		"10.96.0.1", "198.51.100.1", "198.51.100.2", "2001:db8::1", "192.168.0.1", "127.0.0.1", "foo",
	}), 0, 3).Draw(t, name)
}

func drawSlice(t *rapid.T) *discoveryv1.EndpointSlice {
	pick := func(name string, from ...string) string { return rapid.SampledFrom(from).Draw(t, name) }
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: pick("slice", "1", "2", "3", "4"),
			Labels: map[string]string{discoveryv1.LabelServiceName: pick("owner", "a", "b", "c", "")},
		},
		AddressType: discoveryv1.AddressType(pick("addressType", "IPv4", "IPv4", "IPv6", "FQDN")),
	}
	if one(t, 6, "headless") {
		s.Labels[corev1.IsHeadlessService] = ""
	}
	for range rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(t, "ports") {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: new(pick("port", "", "x", "y")), Port: rapid.SampledFrom([]*int32{nil, new(int32(8080)), new(int32(9090))}).Draw(t, "number"),
		})
	}
	for range rapid.SampledFrom([]int{0, 1, 2, 3, 4}).Draw(t, "endpoints") {
		addr := "10.244.0." + pick("address", "1", "2", "3")
		if s.AddressType == discoveryv1.AddressTypeIPv6 {
			addr = "fd00:244::" + pick("address", "1", "2", "3")
		}
		var hints []string
		if rapid.Bool().Draw(t, "hinted") {
			hints = []string{pick("hint", "zone:a", "zone:b", "n1", "n2")}
		}
		s.Endpoints = append(s.Endpoints, ep(addr, pick("node", "n1", "n2", ""), pick("conditions", "rs-", "rs-", "-st", "---", "rst", "-s-"), hints...))
	}
	return s
}

// world is the objects that there are; it writes what it does into a cache.
type world struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	node     *corev1.Node
	local    Local
	cidrs    bool
}

func (w *world) change(t *rapid.T, c *Cache) {
	switch rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).Draw(t, "what") {
	case 0, 1, 2:
		s := drawService(t)
		w.services[s.Name] = s
		c.SetService(s)
	case 3:
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "deleted")
		delete(w.services, name)
		c.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: name})
	case 4, 5, 6:
		s := drawSlice(t)
		w.slices[s.Name] = s
		c.SetEndpointSlice(s)
	case 7:
		name := rapid.SampledFrom([]string{"1", "2", "3", "4"}).Draw(t, "deleted")
		delete(w.slices, name)
		c.DeleteEndpointSlice("ns", name)
	case 8:
		w.node = testNode(func(n *corev1.Node) {
			n.Labels[corev1.LabelTopologyZone] = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone")
			n.Spec.PodCIDRs = rapid.SampledFrom([][]string{nil, {"10.244.1.0/24"}, {"fd00:244::/64", "10.244.2.0/24"}}).Draw(t, "podCIDRs")
			if rapid.Bool().Draw(t, "single") {
				n.Status.Addresses = n.Status.Addresses[:2]
			}
		})
		c.SetNode(w.node)
	case 9:
		w.local = testLocal(rapid.SliceOfDistinct(rapid.SampledFrom([]string{"198.51.100.1/32", "198.51.100.2/32", "10.0.0.9/24"}), rapid.ID).Draw(t, "addresses")...)
		c.SetLocal(w.local)
	case 10:
		if w.cidrs = rapid.Bool().Draw(t, "ServiceCIDR"); w.cidrs {
			c.SetServiceCIDR(testCIDR("10.96.0.0/16"))
		} else {
			c.DeleteServiceCIDR("kubernetes")
		}
	case 11:
		c.DeleteNode("n1") // what it said still counts
	}
}

// fromScratch tells a new cache of all objects, in an order that is drawn.
func (w *world) fromScratch(t *rapid.T, config Config) *dataplane.Snapshot {
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	var tell []func()
	for _, name := range slices.Sorted(maps.Keys(w.services)) {
		tell = append(tell, func() { c.SetService(w.services[name]) })
	}
	for _, name := range slices.Sorted(maps.Keys(w.slices)) {
		tell = append(tell, func() { c.SetEndpointSlice(w.slices[name]) })
	}
	if w.node != nil {
		tell = append(tell, func() { c.SetNode(w.node) })
	}
	tell = append(tell, func() { c.SetLocal(w.local) })
	if w.cidrs {
		tell = append(tell, func() { c.SetServiceCIDR(testCIDR("10.96.0.0/16")) })
	}
	for _, f := range rapid.Permutation(tell).Draw(t, "order") {
		f()
	}
	return build(c)
}

// kpng#8, kubernetes#121362: whatever comes, in whatever order, batches and
// repetitions, ends in what the last versions of the objects ask for.
// Proves S2.1.
func TestAnyWayEndsInTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := testConfig()
		config.DetectLocal = rapid.SampledFrom([]DetectLocal{DetectNone, DetectClusterCIDR, DetectNodeCIDR}).Draw(t, "detect")
		config.MasqueradeAll = rapid.Bool().Draw(t, "masqueradeAll")
		c, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}}
		last := build(c)
		for range rapid.IntRange(5, 30).Draw(t, "changes") {
			w.change(t, c)
			if rapid.Bool().Draw(t, "build") {
				last = checkStep(t, c, last)
			}
		}
		last = checkStep(t, c, last)
		if got, want := dump(last), dump(w.fromScratch(t, config)); got != want {
			t.Fatalf("got\n%s\nfrom scratch\n%s", got, want)
		}
	})
}

// checkStep builds, and checks that the snapshot is as the contract wants it
// and that what is equal is the same.
func checkStep(t *rapid.T, c *Cache, last *dataplane.Snapshot) *dataplane.Snapshot {
	s, problems := c.Build(time.Time{})
	for _, p := range problems {
		if p.Reason == NotProgrammable {
			t.Fatalf("invalid: %s", p.Message)
		}
	}
	for ch := range s.ChangesSince(last) {
		if ch.Old != nil && ch.New != nil && dumpPort(ch.Old) == dumpPort(ch.New) {
			t.Fatalf("%s changed its pointer, not its content", ch.Name)
		}
	}
	if s != last && dump(s) == dump(last) {
		t.Fatalf("a snapshot without a difference")
	}
	if again := build(c); again != s {
		t.Fatal("a second Build makes another snapshot")
	}
	for sp := range s.ServicePorts() {
		for _, f := range sp.Frontends {
			if m, ok := s.Lookup(f.Key(sp.Name.Protocol)); !ok || m.ServicePort != sp {
				t.Fatalf("%s is not found at %s", sp.Name, f.Key(sp.Name.Protocol))
			}
		}
	}
	return s
}

// Decide answers for flows to every address of the little world, whatever the
// objects are: no verdict contradicts the snapshot's own index.
func TestNoFlowIsUndecided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := New(testConfig())
		if err != nil {
			t.Fatal(err)
		}
		w := &world{services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}}
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			w.change(t, c)
		}
		s := build(c)
		for _, dst := range []string{"10.96.0.1", "10.96.0.2", "198.51.100.1", "192.168.0.1", "fd00:96::2"} {
			for _, port := range []uint16{80, 81, 30000} {
				a := netip.MustParseAddr(dst)
				src := netip.MustParseAddr(map[bool]string{true: "10.244.1.9", false: "fd00:244:0:1::9"}[a.Is4()])
				v := s.Decide(dataplane.Flow{Src: netip.AddrPortFrom(src, 4000), Dst: netip.AddrPortFrom(a, port), Protocol: dataplane.TCP, InInterface: "veth0"})
				if v.Action == dataplane.Forward && (v.Pool == nil || len(v.Pool.Endpoints) == 0 || v.ServicePort == nil) {
					t.Fatalf("%s:%d: %s without endpoints", dst, port, v)
				}
				if v.Reason == "" {
					t.Fatal(fmt.Sprint("no reason: ", v))
				}
			}
		}
	})
}
