package servicecache

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/portway/portway/modules/dataplane"
)

// Proves S1.1, S1.3, S1.4, S1.5, S1.8, S5.13.
func TestWhichServices(t *testing.T) {
	two := []any{testSlice("s", "s-1", ep(e1, "n1", "rs-"), ep(e2, "n2", "rs-")), testSlice("s", "s-6", ep("fd00:244:0:1::1", "n1", "rs-"))}
	served := "pod 10.96.0.10:80 => 10.244.1.1:8080 10.244.2.2:8080 masq=no"
	ignored := "pod 10.96.0.10:80 => not ours"
	for name, tt := range map[string]struct {
		proxyName string
		service   *corev1.Service
		want      []string
	}{
		"a Service is served":                      {"", testService("s"), []string{served, "pod 10.96.0.10:81 => reject"}},
		"headless (k8s#131497), externalIPs too":   {"", testService("s", clusterIPs("None"), func(s *corev1.Service) { s.Spec.ExternalIPs = []string{extIP} }), []string{"pod " + extIP + ":80 => not ours"}},
		"empty clusterIP":                          {"", testService("s", clusterIPs(""), exposed), []string{"out " + lbIP + ":80 => not ours", "out 192.168.0.1:30080 => not ours"}},
		"ExternalName":                             {"", testService("s", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), []string{ignored}},
		"another proxy's: neither reject nor drop": {"", testService("s", label(proxyNameLabel, "x")), []string{ignored, "pod 10.96.0.10:81 => not ours"}},
		"the label without a value":                {"", testService("s", label(proxyNameLabel, "")), []string{ignored}},
		"our proxy name":                           {"x", testService("s", label(proxyNameLabel, "x")), []string{served}},
		"not our proxy name":                       {"x", testService("s", label(proxyNameLabel, "y")), []string{ignored}},
		"a proxy name, no label":                   {"x", testService("s"), []string{ignored}},
		"a Service exists only in families with a ClusterIP": {"", testService("s", clusterIPs(vip6), exposed), []string{
			"out " + lbIP + ":80 => not ours", "out 192.168.0.1:30080 => not ours", "out6 [fd00:c0::1]:30080 => [fd00:244:0:1::1]:8080 masq=yes",
		}},
		"the ClusterIPs may be in the old field": {"", testService("s", func(s *corev1.Service) { s.Spec.ClusterIPs = nil }), []string{served}},
		"status.loadBalancer is read whatever the type": {"", testService("s", exposed, func(s *corev1.Service) { s.Spec.Type = "ClusterIP" }), []string{
			"out " + lbIP + ":80 => 10.244.1.1:8080 10.244.2.2:8080 masq=yes",
		}},
		"nodePort 0 is no NodePort":         {"", testService("s", exposed, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }), []string{"out 192.168.0.1:30080 => not ours"}},
		"no protocol is TCP":                {"", testService("s", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "" }), []string{served}},
		"an unallocated address is dropped": {"", testService("s"), []string{"pod 10.96.0.99:80 => drop"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig()
			config.ProxyName = tt.proxyName
			c := newCache(t, config, two...)
			set(t, c, tt.service, testCIDR("10.96.0.0/16", "fd00:96::/112"))
			expect(t, build(c), tt.want...)
		})
	}
}

// kubernetes#98577, #134321: a label that appears is a delete, one that
// vanishes a create.
// Proves S1.3, S1.4.
func TestProxyNameLabelComesAndGoes(t *testing.T) {
	c := newCache(t, testConfig(), testService("s"), testSlice("s", "s-1", ep(e1, "n1", "rs-")))
	served, ignored := "pod 10.96.0.10:80 => 10.244.1.1:8080 masq=no", "pod 10.96.0.10:80 => not ours"
	expect(t, build(c), served)
	set(t, c, testService("s", label(proxyNameLabel, "x")))
	s := build(c)
	expect(t, s, ignored)
	if vip := netip.MustParseAddr(vip4); !s.IsIgnored(vip) || s.IsClusterIP(vip) {
		t.Error("its ClusterIP is not ignored")
	}
	set(t, c, testService("s"))
	s = build(c)
	expect(t, s, served)
	if s.IsIgnored(netip.MustParseAddr(vip4)) {
		t.Error("its ClusterIP is still ignored")
	}
	set(t, c, testService("s", label(proxyNameLabel, "x")))
	c.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: "s"})
	if s := build(c); s.IsIgnored(netip.MustParseAddr(vip4)) || s.Len() != 0 {
		t.Error("a deleted Service is still there")
	}
}

// A headless label on a slice that appears is a delete of the slice, one that
// vanishes a create (kubernetes#134321).
// Proves S1.2.
func TestHeadlessLabelOfSlice(t *testing.T) {
	c := newCache(t, testConfig(), testService("s"))
	headless := testSlice("s", "s-1", ep(e1, "n1", "rs-"))
	headless.Labels[corev1.IsHeadlessService] = ""
	for range 2 {
		set(t, c, testSlice("s", "s-1", ep(e1, "n1", "rs-")))
		expect(t, build(c), "pod 10.96.0.10:80 => 10.244.1.1:8080 masq=no")
		set(t, c, headless)
		expect(t, build(c), "pod 10.96.0.10:80 => reject")
	}
}

// kubernetes#81418: the same number under two protocols are two ports.
// Proves S1.7.
func TestSameNumberTwoProtocols(t *testing.T) {
	dns := testService("dns", ports(
		corev1.ServicePort{Name: "dns", Protocol: "UDP", Port: 53, NodePort: 30053},
		corev1.ServicePort{Name: "dns-tcp", Protocol: "TCP", Port: 53, NodePort: 30053},
		corev1.ServicePort{Name: "dns-sctp", Protocol: "SCTP", Port: 53},
	))
	udp, tcp, sctp := corev1.ProtocolUDP, corev1.ProtocolTCP, corev1.ProtocolSCTP
	s := testSlice("dns", "dns-1", ep(e1, "n1", "rs-"))
	s.Ports = []discoveryv1.EndpointPort{
		{Name: new("dns"), Protocol: &udp, Port: new(int32(5353))},
		{Name: new("dns-tcp"), Protocol: &tcp, Port: new(int32(5354))},
		{Name: new("dns-sctp"), Protocol: &sctp, Port: new(int32(5355))},
	}
	expect(t, build(newCache(t, testConfig(), dns, s)),
		"pod 10.96.0.10:53/UDP => 10.244.1.1:5353 masq=no",
		"pod 10.96.0.10:53/TCP => 10.244.1.1:5354 masq=no",
		"pod 10.96.0.10:53/SCTP => 10.244.1.1:5355 masq=no",
		"out 192.168.0.1:30053/UDP => 10.244.1.1:5353 masq=yes",
		"out 192.168.0.1:30053/TCP => 10.244.1.1:5354 masq=yes",
		"out 192.168.0.1:30053/SCTP => not ours")
}

// Proves S1.11.
func TestAPIServerAndDNSFirst(t *testing.T) {
	at := func(namespace, name, ip string, labels map[string]string) *corev1.Service {
		s := testService(name, clusterIPs(ip))
		s.Namespace, s.Labels = namespace, labels
		return s
	}
	c := newCache(t, testConfig(),
		at("a", "a", "10.96.0.2", nil), at("kube-system", "kube-dns", "10.96.0.3", nil),
		at("default", "kubernetes", "10.96.0.1", nil), at("b", "coredns", "10.96.0.4", map[string]string{"k8s-app": "kube-dns"}))
	var names []string
	for sp := range build(c).ServicePorts() {
		names = append(names, sp.Name.Service().String())
	}
	if want := []string{"default/kubernetes", "b/coredns", "kube-system/kube-dns", "a/a"}; !equal(names, want) {
		t.Errorf("order of programming %v, want %v", names, want)
	}
}
