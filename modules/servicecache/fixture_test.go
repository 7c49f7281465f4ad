package servicecache

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/modules/dataplane"
)

// The cluster of these tests: node n1 in zone a, with pods of its own in
// 10.244.1.0/24 and fd00:244:1::/64.
const (
	nodeIP4, nodeIP6 = "192.168.0.1", "fd00:c0::1"
	vip4, vip6       = "10.96.0.10", "fd00:96::10"
	lbIP, extIP      = "198.51.100.1", "198.51.100.2"
	e1, e2, e3       = "10.244.1.1", "10.244.2.2", "10.244.3.3" // on n1, n2, n3
)

func testConfig() Config {
	return Config{
		NodeName:        "n1",
		DetectLocal:     DetectClusterCIDR,
		ClusterCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")},
		MasqueradeBit:   14,
		DropUnallocated: true,
	}
}

func testNode(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24", "fd00:244:0:1::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n1"},
			{Type: corev1.NodeInternalIP, Address: nodeIP4},
			{Type: corev1.NodeInternalIP, Address: nodeIP6},
		}},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func testLocal(more ...string) Local {
	var l Local
	for _, s := range append([]string{"127.0.0.1/8", "::1/128", nodeIP4 + "/24", nodeIP6 + "/64"}, more...) {
		l.Addresses = append(l.Addresses, netip.MustParsePrefix(s))
	}
	return l
}

type serviceOption func(*corev1.Service)

// testService is dual-stack and has one unnamed port 80/TCP.
func testService(name string, options ...serviceOption) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: vip4, ClusterIPs: []string{vip4, vip6},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, o := range options {
		o(s)
	}
	return s
}

func clusterIPs(ips ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips }
}

func ports(ps ...corev1.ServicePort) serviceOption {
	return func(s *corev1.Service) { s.Spec.Ports = ps }
}

// exposed makes it a LoadBalancer Service with a frontend of each kind.
func exposed(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports[0].NodePort = 30080
	s.Spec.ExternalIPs = []string{extIP}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: lbIP}}
}

func internalLocal(s *corev1.Service) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &local
}

func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func sourceRanges(rs ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = rs }
}

func label(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Labels = map[string]string{key: value} }
}

func createdAt(seconds int64) serviceOption {
	return func(s *corev1.Service) { s.CreationTimestamp = metav1.Unix(seconds, 0) }
}

// testSlice has port 8080/TCP without a name, and IPv4 unless the first
// endpoint says otherwise.
func testSlice(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints:   endpoints,
	}
	if len(endpoints) > 0 && len(endpoints[0].Addresses) > 0 && strings.Contains(endpoints[0].Addresses[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

// conditions spells ready, serving, terminating as "rst"; "-" is false and "?"
// is not said.
func conditions(s string) discoveryv1.EndpointConditions {
	at := func(i int) *bool {
		if s[i] == '?' {
			return nil
		}
		return new(s[i] != '-')
	}
	return discoveryv1.EndpointConditions{Ready: at(0), Serving: at(1), Terminating: at(2)}
}

// ep is an endpoint on the node; "" is no node.
func ep(addr, node, conds string, hints ...string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{addr}, Conditions: conditions(conds)}
	if node != "" {
		e.NodeName = &node
	}
	for _, h := range hints {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		if zone, ok := strings.CutPrefix(h, "zone:"); ok {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
		} else {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: h})
		}
	}
	return e
}

// newCache returns one with the test's node and objects.
func newCache(t testing.TB, config Config, objects ...any) *Cache {
	t.Helper()
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	c.SetLocal(testLocal())
	c.SetNode(testNode())
	set(t, c, objects...)
	return c
}

func set(t testing.TB, c *Cache, objects ...any) {
	t.Helper()
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			c.SetService(o)
		case *discoveryv1.EndpointSlice:
			c.SetEndpointSlice(o)
		case *corev1.Node:
			c.SetNode(o)
		case *networkingv1.ServiceCIDR:
			c.SetServiceCIDR(o)
		case Local:
			c.SetLocal(o)
		default:
			t.Fatalf("no object: %T", o)
		}
	}
}

func build(c *Cache) *dataplane.Snapshot {
	s, _ := c.Build(time.Time{})
	return s
}

// flow reads "pod 10.96.0.10:80", with the sources pod (of this node), far (a
// pod of another node), node, out, and, for other families and protocols,
// "pod6 [::]:80" and "pod [::]:80/UDP".
func flow(t testing.TB, text string) dataplane.Flow {
	t.Helper()
	from, to, ok := strings.Cut(text, " ")
	to, proto, udp := strings.Cut(to, "/")
	dst, err := netip.ParseAddrPort(to)
	sources := map[string]string{
		"pod": "10.244.1.9 veth0", "far": "10.244.2.9 eth0", "node": nodeIP4 + " ", "out": "203.0.113.9 eth0",
		"pod6": "fd00:244:0:1::9 veth0", "far6": "fd00:244:0:2::9 eth0", "node6": nodeIP6 + " ", "out6": "2001:db8::9 eth0",
		"neighbour": "192.168.0.7 eth0",
	}
	src, dev, _ := strings.Cut(sources[from], " ")
	if !ok || err != nil || src == "" {
		t.Fatalf("no flow: %q", text)
	}
	f := dataplane.Flow{Src: netip.AddrPortFrom(netip.MustParseAddr(src), 40000), Dst: dst, Protocol: dataplane.TCP, InInterface: dev}
	if udp {
		if f.Protocol, err = dataplane.ParseProtocol(proto); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// verdict spells what happens to a flow: "reject", or
// "10.244.1.1:8080 10.244.2.2:8080 masq=no".
func verdict(v dataplane.Verdict) string {
	if v.Action != dataplane.Forward {
		return v.Action.String()
	}
	var b strings.Builder
	for _, e := range v.Pool.Endpoints {
		fmt.Fprintf(&b, "%s ", e.Addr)
	}
	return b.String() + "masq=" + v.MasqueradeTo(v.Pool.Endpoints[0]).String()
}

// expect checks lines "flow => verdict".
func expect(t testing.TB, s *dataplane.Snapshot, lines ...string) {
	t.Helper()
	for _, line := range lines {
		f, want, ok := strings.Cut(line, " => ")
		if !ok {
			t.Fatalf("no expectation: %q", line)
		}
		v := s.Decide(flow(t, f))
		if got := verdict(v); got != want {
			t.Errorf("%s\n got %s (%s)\nwant %s", f, got, v, want)
		}
	}
}

// lines splits a block of expectations.
func lines(s string) []string {
	var out []string
	for l := range strings.SplitSeq(s, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}
