package servicecache

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/portway/portway/modules/dataplane"
)

func anyPort(ps ...discoveryv1.EndpointPort) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Ports = ps }
}

func changed(s *discoveryv1.EndpointSlice, change ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	for _, f := range change {
		f(s)
	}
	return s
}

func slicesOf(ss ...*discoveryv1.EndpointSlice) []any {
	var out []any
	for _, s := range ss {
		out = append(out, s)
	}
	return out
}

// Proves S2.1, S2.2, S2.3, S2.4, S2.6, kubernetes#101935.
func TestWhichEndpoints(t *testing.T) {
	const at = "pod 10.96.0.10:80 => "
	udp := corev1.ProtocolUDP
	for name, tt := range map[string]struct {
		slices []any
		want   string
	}{
		"no slice":    {nil, at + "reject"},
		"empty slice": {slicesOf(testSlice("s", "1")), at + "reject"},
		"all slices of the Service": {
			slicesOf(testSlice("s", "2", ep(e2, "n2", "rs-")), testSlice("s", "1", ep(e1, "n1", "rs-")), testSlice("x", "3", ep(e3, "n3", "rs-"))),
			at + "10.244.1.1:8080 10.244.2.2:8080 masq=no",
		},
		"other families do not count": {
			slicesOf(testSlice("s", "1", ep("fd00:244:0:1::1", "n1", "rs-"))), at + "reject",
		},
		"an address that is not of the slice's type": {
			slicesOf(changed(testSlice("s", "1", ep("fd00:244:0:1::1", "n1", "rs-"), ep(e1, "n1", "rs-")), func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPv4" })),
			at + "10.244.1.1:8080 masq=no",
		},
		"an FQDN slice": {
			slicesOf(changed(testSlice("s", "1", ep(e1, "n1", "rs-")), func(s *discoveryv1.EndpointSlice) { s.AddressType = "FQDN" })), at + "reject",
		},
		"another port name is zero endpoints (k8s#16225)": {
			slicesOf(changed(testSlice("s", "1", ep(e1, "n1", "rs-")), anyPort(discoveryv1.EndpointPort{Name: new("https"), Port: new(int32(8080))}))), at + "reject",
		},
		"another protocol is zero endpoints": {
			slicesOf(changed(testSlice("s", "1", ep(e1, "n1", "rs-")), anyPort(discoveryv1.EndpointPort{Protocol: &udp, Port: new(int32(8080))}))), at + "reject",
		},
		"a port nil is not usable here": {
			slicesOf(changed(testSlice("s", "1", ep(e1, "n1", "rs-")), anyPort(discoveryv1.EndpointPort{}))), at + "reject",
		},
		"the port number is the slice's": {
			slicesOf(testSlice("s", "1", ep(e1, "n1", "rs-")), changed(testSlice("s", "2", ep(e2, "n2", "rs-")), anyPort(discoveryv1.EndpointPort{Port: new(int32(9090))}))),
			at + "10.244.1.1:8080 10.244.2.2:9090 masq=no",
		},
		"the same IP with two ports is two endpoints (k8s PR 101935)": {
			slicesOf(changed(testSlice("s", "1", ep(e1, "n1", "rs-")), anyPort(discoveryv1.EndpointPort{Port: new(int32(8080))}, discoveryv1.EndpointPort{Port: new(int32(8081))}))),
			at + "10.244.1.1:8080 10.244.1.1:8081 masq=no",
		},
		"addresses[0] only": {
			slicesOf(testSlice("s", "1", discoveryv1.Endpoint{Addresses: []string{e1, e2}}, discoveryv1.Endpoint{})), at + "10.244.1.1:8080 masq=no",
		},
		"conditions that are not said are ready": {slicesOf(testSlice("s", "1", ep(e1, "", "???"))), at + "10.244.1.1:8080 masq=no"},
		"refused addresses (CVE-2021-25737)": {
			slicesOf(testSlice("s", "1", ep("127.0.0.1", "n1", "rs-"), ep("169.254.169.254", "n1", "rs-"), ep("0.0.0.0", "n1", "rs-"), ep("224.0.0.1", "n1", "rs-"), ep("foo", "n1", "rs-"), ep(e1, "n1", "rs-"))),
			at + "10.244.1.1:8080 masq=no",
		},
		"leading zeros are decimal":                     {slicesOf(testSlice("s", "1", ep("010.0244.001.01", "n1", "rs-"))), at + "10.244.1.1:8080 masq=no"},
		"an IPv4 address in IPv6 clothing":              {slicesOf(changed(testSlice("s", "1", ep("::ffff:10.244.1.1", "n1", "rs-")), func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPv4" })), at + "10.244.1.1:8080 masq=no"},
		"no ready, none terminating: none (k8s#106182)": {slicesOf(testSlice("s", "1", ep(e1, "n1", "---"), ep(e2, "n2", "-s-"))), at + "reject"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, build(newCache(t, testConfig(), append(tt.slices, testService("s"))...)), tt.want)
		})
	}
}

// The usable set of a scope: the ready ones; if none, the serving and
// terminating ones; else none (KEP-1669), for every pair of conditions.
// Proves S2.4, S2.7.
func TestUsableSet(t *testing.T) {
	usable := func(c string) int {
		switch {
		case c[0] != '-':
			return 2 // ready, also when it terminates (publishNotReadyAddresses)
		case c[1] != '-' && c[2] == 't':
			return 1
		}
		return 0
	}
	all := []string{"rst", "rs-", "r-t", "r--", "-st", "-s-", "--t", "---", "???", "-?t", "?-?"}
	for _, c1 := range all {
		for _, c2 := range all {
			s := build(newCache(t, testConfig(), testService("s"), testSlice("s", "1", ep(e1, "n1", c1), ep(e2, "n2", c2))))
			want, best := "", max(usable(c1), usable(c2))
			if usable(c1) == best {
				want += e1 + ":8080 "
			}
			if usable(c2) == best {
				want += e2 + ":8080 "
			}
			want += "masq=no"
			if best == 0 {
				want = "reject"
			}
			t.Run(c1+" "+c2, func(t *testing.T) { expect(t, s, "pod 10.96.0.10:80 => "+want) })
		}
	}
}

// The same key twice: ready wins over serving over the rest, then not
// terminating, ties by slice name; the winner says where it is.
// Proves S2.5.
func TestSameEndpointTwice(t *testing.T) {
	for name, tt := range map[string]struct {
		a, b  string // conditions in slices 1 and 2
		local bool   // slice 1 says it is on this node, slice 2 it is not
	}{
		"ready before serving":           {"rs-", "-st", true},
		"serving before ready":           {"-st", "rs-", false},
		"serving before the rest":        {"--t", "-st", false},
		"not terminating first":          {"rst", "rs-", false},
		"a tie is settled by slice name": {"rs-", "rs-", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := build(newCache(t, testConfig(), testService("s"), testSlice("s", "2", ep(e1, "n2", tt.b)), testSlice("s", "1", ep(e1, "n1", tt.a))))
			p := s.Decide(flow(t, "pod 10.96.0.10:80")).Pool
			if p == nil || len(p.Endpoints) != 1 || p.Endpoints[0].Local != tt.local {
				t.Errorf("pool %v, want one endpoint with Local %t", p, tt.local)
			}
		})
	}
}

// Proves S2.9, S2.10.
func TestHints(t *testing.T) {
	const at = "pod 10.96.0.10:80 => "
	for name, tt := range map[string]struct {
		endpoints []discoveryv1.Endpoint
		want      string
	}{
		"same node":                            {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "n1", "zone:b"), ep(e2, "n2", "rs-", "n2", "zone:a")}, at + "10.244.1.1:8080 masq=no"},
		"one has no hint for a node":           {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "n1"), ep(e2, "n2", "rs-")}, at + "10.244.1.1:8080 10.244.2.2:8080 masq=no"},
		"node hints, none names this node":     {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "n3"), ep(e2, "n2", "rs-", "n2")}, at + "10.244.1.1:8080 10.244.2.2:8080 masq=no"},
		"then same zone":                       {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "n3", "zone:b"), ep(e2, "n2", "rs-", "n2", "zone:b", "zone:a")}, at + "10.244.2.2:8080 masq=no"},
		"one has no hint":                      {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "zone:a"), ep(e2, "n2", "rs-")}, at + "10.244.1.1:8080 10.244.2.2:8080 masq=no"},
		"one that is not ready has no hint":    {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "zone:a"), ep(e2, "n2", "rs-", "zone:b"), ep(e3, "n3", "-s-")}, at + "10.244.1.1:8080 masq=no"},
		"no hint names this zone":              {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "zone:b")}, at + "10.244.1.1:8080 masq=no"},
		"a zone is not a part of another":      {[]discoveryv1.Endpoint{ep(e1, "n1", "rs-", "zone:aa"), ep(e2, "n2", "rs-", "zone:a")}, at + "10.244.2.2:8080 masq=no"},
		"the terminating fall-back ignores it": {[]discoveryv1.Endpoint{ep(e1, "n1", "-st", "zone:a"), ep(e2, "n2", "-st", "zone:b")}, at + "10.244.1.1:8080 10.244.2.2:8080 masq=no"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, build(newCache(t, testConfig(), testService("s"), testSlice("s", "1", tt.endpoints...))), tt.want)
		})
	}
	t.Run("Local sets never see hints", func(t *testing.T) {
		expect(t, build(newCache(t, testConfig(), testService("s", internalLocal), testSlice("s", "1", ep(e1, "n1", "rs-", "zone:b"), ep(e2, "n2", "rs-", "zone:a")))),
			at+"10.244.1.1:8080 masq=no")
	})
	t.Run("hints are of one port and family", func(t *testing.T) {
		expect(t, build(newCache(t, testConfig(), testService("s"), testSlice("s", "1", ep(e1, "n1", "rs-", "zone:a"), ep(e2, "n2", "rs-", "zone:b")),
			testSlice("s", "6", ep("fd00:244:0:1::1", "n1", "rs-"), ep("fd00:244:0:2::1", "n2", "rs-")))),
			at+"10.244.1.1:8080 masq=no", "pod6 [fd00:96::10]:80 => [fd00:244:0:1::1]:8080 [fd00:244:0:2::1]:8080 masq=no")
	})
}

// The zone is that of the Node, whatever it is called now (kubernetes#111321);
// without one there is no zone mode.
// Proves S2.9.
func TestZoneOfNodeChanges(t *testing.T) {
	c := newCache(t, testConfig(), testService("s"), testSlice("s", "1", ep(e1, "n1", "rs-", "zone:a"), ep(e2, "n2", "rs-", "zone:b"), ep(e3, "n3", "rs-", "zone:")))
	expect(t, build(c), "pod 10.96.0.10:80 => 10.244.1.1:8080 masq=no")
	set(t, c, testNode(func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "b" }))
	expect(t, build(c), "pod 10.96.0.10:80 => 10.244.2.2:8080 masq=no")
	c.DeleteNode("n1")
	expect(t, build(c), "pod 10.96.0.10:80 => 10.244.2.2:8080 masq=no")
	set(t, c, testNode(func(n *corev1.Node) { n.Labels = nil }))
	expect(t, build(c), "pod 10.96.0.10:80 => 10.244.1.1:8080 10.244.2.2:8080 10.244.3.3:8080 masq=no")
}

// A Node that comes or changes decides anew for Services that were there.
func TestNodeComesAfterServices(t *testing.T) {
	config := testConfig()
	config.DetectLocal = DetectNodeCIDR
	c := newCache(t, config, testService("s", exposed, sourceRanges(nodeIP4+"/32")), testSlice("s", "1", ep(e1, "n1", "rs-")))
	node := func(podCIDR, ip string) {
		set(t, c, testNode(func(n *corev1.Node) { n.Spec.PodCIDRs[0], n.Status.Addresses[1].Address = podCIDR, ip }))
	}
	allowed, masqueraded := "node "+lbIP+":80 => 10.244.1.1:8080 masq=yes", "out 10.96.0.10:80 => 10.244.1.1:8080 masq=yes"
	expect(t, build(c), allowed, masqueraded)
	node("10.244.1.0/24", "192.168.0.2")
	expect(t, build(c), "node "+lbIP+":80 => drop", masqueraded)
	node("fd00::/64", nodeIP4)
	expect(t, build(c), allowed, "out 10.96.0.10:80 => 10.244.1.1:8080 masq=no")
	node("10.244.1.0/24", nodeIP4)
	expect(t, build(c), allowed, masqueraded)
}

// A slice that changes its Service leaves the old one.
// Proves S2.1.
func TestSliceMoves(t *testing.T) {
	c := newCache(t, testConfig(), testService("s"), testService("t", clusterIPs("10.96.0.11")), testSlice("s", "1", ep(e1, "n1", "rs-")))
	expect(t, build(c), "pod 10.96.0.10:80 => 10.244.1.1:8080 masq=no", "pod 10.96.0.11:80 => reject")
	set(t, c, testSlice("t", "1", ep(e1, "n1", "rs-")))
	expect(t, build(c), "pod 10.96.0.10:80 => reject", "pod 10.96.0.11:80 => 10.244.1.1:8080 masq=no")
	c.DeleteEndpointSlice("ns", "1")
	expect(t, build(c), "pod 10.96.0.10:80 => reject", "pod 10.96.0.11:80 => reject")
}

// An existing flow to a serving endpoint on any node is never stale, whatever
// policy, hints and termination say.
// Proves S7.6.
func TestServing(t *testing.T) {
	c := newCache(t, testConfig(), testService("s", internalLocal),
		testSlice("s", "1", ep(e3, "n3", "-st", "zone:x"), ep(e1, "n1", "rs-"), ep(e2, "n2", "---"), ep("10.244.2.3", "n2", "-s-"), ep("10.244.2.4", "n2", "r--")),
		testSlice("s", "6", ep("fd00:244:0:1::1", "n1", "rs-")))
	sp, _ := build(c).ServicePort(dataplane.ServicePortName{Namespace: "ns", Name: "s", Protocol: dataplane.TCP})
	want := []string{"10.244.1.1:8080", "10.244.2.3:8080", "10.244.2.4:8080", "10.244.3.3:8080", "[fd00:244:0:1::1]:8080"}
	if !equal(texts(sp.Serving), want) {
		t.Errorf("serving %v, want %v", sp.Serving, want)
	}
}

func texts(as []netip.AddrPort) []string {
	var out []string
	for _, a := range as {
		out = append(out, a.String())
	}
	return out
}

// kubernetes#16225: a port that is renamed is an old port removed and a new one
// added at once; its address never fails to answer.
// Proves S2.1.
func TestPortRenamed(t *testing.T) {
	named := func(name string) []any {
		return []any{
			testService("s", ports(corev1.ServicePort{Name: name, Port: 80})),
			changed(testSlice("s", "1", ep(e1, "n1", "rs-")), anyPort(discoveryv1.EndpointPort{Name: &name, Port: new(int32(8080))})),
		}
	}
	c := newCache(t, testConfig(), named("http")...)
	old := build(c)
	set(t, c, named("web")...)
	s := build(c)
	expect(t, s, "pod 10.96.0.10:80 => 10.244.1.1:8080 masq=no")
	var changes []string
	for ch := range s.ChangesSince(old) {
		changes = append(changes, ch.Name.Port)
	}
	if len(changes) != 2 || s.Len() != 1 {
		t.Errorf("changed %v of %d, want http removed and web added", changes, s.Len())
	}
}

// What the control plane makes hints of decides nothing here by itself.
// Proves S2.10.
func TestHintsAloneDecide(t *testing.T) {
	s := testService("s", func(s *corev1.Service) {
		s.Annotations = map[string]string{"service.kubernetes.io/topology-mode": "Auto", "service.kubernetes.io/topology-aware-hints": "Auto"}
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode)
	})
	zoned := func(e discoveryv1.Endpoint, zone string) discoveryv1.Endpoint {
		e.Zone, e.DeprecatedTopology = &zone, map[string]string{corev1.LabelTopologyZone: zone}
		return e
	}
	slice := changed(testSlice("s", "1", zoned(ep(e1, "n1", "rs-"), "a"), zoned(ep(e2, "n2", "rs-"), "b")),
		anyPort(discoveryv1.EndpointPort{Port: new(int32(8080)), AppProtocol: new("kubernetes.io/h2c")}))
	expect(t, build(newCache(t, testConfig(), s, slice)), "pod 10.96.0.10:80 => 10.244.1.1:8080 10.244.2.2:8080 masq=no")
}

// Proves S2.3.
func TestEndpointWithoutNodeIsNotLocal(t *testing.T) {
	c := newCache(t, testConfig(), testService("s", internalLocal), testSlice("s", "1", ep(e1, "", "rs-"), ep("10.244.1.7", "n1", "rs-")))
	expect(t, build(c), "pod 10.96.0.10:80 => 10.244.1.7:8080 masq=no")
	set(t, c, testSlice("s", "1", ep(e1, "", "rs-")))
	expect(t, build(c), "pod 10.96.0.10:80 => reject")
}
