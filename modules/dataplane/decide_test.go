package dataplane

import (
	"net/netip"
	"strings"
	"testing"
)

func flow(proto, iface, src, dst string) Flow {
	p, err := ParseProtocol(proto)
	if err != nil {
		panic(err)
	}
	return Flow{netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst), p, iface}
}

func ips(ss ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range ss {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func testNode() *Node {
	return &Node{
		Name:              "node",
		PrimaryIPs:        ips("192.168.77.10"),
		Addresses:         ips("10.96.0.12", "10.244.1.1", "127.0.0.1", "192.168.77.10"),
		NodePortAddrs:     ips("192.168.77.10"),
		LoopbackNodePorts: true,
		Detectors:         []Detector{{Family: IPv4, Prefix: netip.MustParsePrefix("10.244.0.0/16")}},
		PodCIDRs:          []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		ServiceCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		DropUnallocated:   true,
		Mark:              1 << 14,
	}
}

func pool(s Scope, eps ...string) *Pool {
	p := &Pool{Family: IPv4, Scope: s}
	for _, e := range eps {
		ap := netip.MustParseAddrPort(e)
		p.Endpoints = append(p.Endpoints, Endpoint{ap, 1, strings.HasPrefix(e, "10.244.1.")})
	}
	return p
}

// routes are for pod, node and outside, as Origin counts.
func frontend(k Kind, addr string, port uint16, routes ...Route) *Frontend {
	f := &Frontend{Kind: k, Family: IPv4, Port: port}
	if addr != "" {
		f.Addr = netip.MustParseAddr(addr)
		f.Family = FamilyOf(f.Addr)
	}
	copy(f.Routes[:], routes)
	return f
}

func to(p *Pool, m Masquerade) Route { return Route{Forward, p, m} }

func port(name string, proto Protocol, pools []*Pool, fs ...*Frontend) *ServicePort {
	return &ServicePort{Name: ServicePortName{"ns", name, "p", proto}, Pools: pools, Frontends: fs}
}

// testSnapshot holds a Service of each sort: web has all kinds of frontends and
// externalTrafficPolicy Local, empty has no endpoint, far has none here.
func testSnapshot(t *testing.T) *Snapshot {
	t.Helper()
	all, local := pool(Cluster, "10.244.1.10:80", "10.244.2.20:80"), pool(Local, "10.244.1.10:80")
	ext := []Route{to(all, MasqueradeRemote), to(all, MasqueradeYes), to(local, MasqueradeNo)}
	lb := frontend(LoadBalancerIP, "203.0.113.1", 80, ext...)
	lb.Sources = &SourceRanges{Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("10.244.2.0/24")}}
	far := pool(Cluster, "10.244.2.30:53")
	no, drop := Route{Action: Reject}, Route{Action: Drop}
	b := Empty().Edit()
	b.SetNode(testNode())
	b.Put(port("web", TCP, []*Pool{all, local},
		frontend(ClusterIP, "10.96.0.10", 80, to(all, MasqueradeNo), to(all, MasqueradeEither), to(all, MasqueradeYes)),
		frontend(NodePort, "", 30080, ext...), lb))
	b.Put(port("empty", TCP, nil, frontend(ClusterIP, "10.96.0.11", 80, no, no, no), frontend(NodePort, "", 30081, no, no, no)))
	b.Put(port("far", UDP, []*Pool{far},
		frontend(ClusterIP, "10.96.0.12", 53, to(far, MasqueradeNo), to(far, MasqueradeEither), to(far, MasqueradeYes)),
		frontend(ExternalIP, "203.0.113.2", 53, to(far, MasqueradeRemote), to(far, MasqueradeYes), drop)))
	b.Ignore(netip.MustParseAddr("10.96.0.99"), true)
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Proves S3.6, S5.11, S5.12.
func TestDecide(t *testing.T) {
	s := testSnapshot(t)
	const pod, farPod, node, out = "10.244.1.9:4000", "10.244.2.9:4000", "192.168.77.10:4000", "198.51.100.7:4000"
	for _, tt := range []struct {
		name string
		flow Flow
		want Action
		pool Scope
		masq Masquerade // to every endpoint, unless hairpin
	}{
		{"ClusterIP from a pod", flow("TCP", "veth1", pod, "10.96.0.10:80"), Forward, Cluster, MasqueradeNo},
		{"ClusterIP from the node", flow("TCP", "", node, "10.96.0.10:80"), Forward, Cluster, MasqueradeEither},
		{"ClusterIP from the node with a Service IP as source", flow("TCP", "", "10.96.0.10:4000", "10.96.0.10:80"), Forward, Cluster, MasqueradeYes},
		{"ClusterIP from outside", flow("TCP", "eth0", out, "10.96.0.10:80"), Forward, Cluster, MasqueradeYes},
		{"NodePort from outside", flow("TCP", "eth0", out, "192.168.77.10:30080"), Forward, Local, MasqueradeNo},
		{"NodePort from a pod here", flow("TCP", "veth1", pod, "192.168.77.10:30080"), Forward, Cluster, MasqueradeNo},
		{"NodePort from a pod elsewhere", flow("TCP", "eth0", farPod, "192.168.77.10:30080"), Forward, Cluster, MasqueradeYes},
		{"NodePort from the node", flow("TCP", "", node, "192.168.77.10:30080"), Forward, Cluster, MasqueradeYes},
		{"NodePort on loopback", flow("TCP", "", "127.0.0.1:4000", "127.0.0.1:30080"), Forward, Cluster, MasqueradeYes},
		{"NodePort on loopback from outside", flow("TCP", "eth0", out, "127.0.0.1:30080"), NotOurs, 0, 0},
		{"NodePort at an address that is not selected", flow("TCP", "eth0", out, "10.244.1.1:30080"), NotOurs, 0, 0},
		{"NodePort of the other protocol", flow("UDP", "eth0", out, "192.168.77.10:30080"), NotOurs, 0, 0},
		{"LB IP from a listed source", flow("TCP", "eth0", out, "203.0.113.1:80"), Forward, Local, MasqueradeNo},
		{"LB IP from a listed pod elsewhere", flow("TCP", "eth0", farPod, "203.0.113.1:80"), Forward, Cluster, MasqueradeYes},
		{"LB IP from an unlisted pod", flow("TCP", "veth1", pod, "203.0.113.1:80"), Drop, 0, 0},
		{"LB IP from the node, which is not listed", flow("TCP", "", "198.51.100.1:4000", "203.0.113.1:80"), Drop, 0, 0},
		{"other port of an LB IP", flow("TCP", "eth0", out, "203.0.113.1:22"), NotOurs, 0, 0},
		{"empty Service", flow("TCP", "veth1", pod, "10.96.0.11:80"), Reject, 0, 0},
		{"empty Service's NodePort", flow("TCP", "eth0", out, "192.168.77.10:30081"), Reject, 0, 0},
		{"externalIP without a local endpoint from outside", flow("UDP", "eth0", out, "203.0.113.2:53"), Drop, 0, 0},
		{"externalIP without a local endpoint from a pod", flow("UDP", "veth1", pod, "203.0.113.2:53"), Forward, Cluster, MasqueradeNo},
		{"other port of a ClusterIP", flow("TCP", "veth1", pod, "10.96.0.10:81"), Reject, 0, 0},
		{"echo request to a ClusterIP", flow("ICMP", "veth1", "10.244.1.9:0", "10.96.0.10:0"), Reject, 0, 0},
		{"unallocated address", flow("TCP", "veth1", pod, "10.96.7.7:80"), Drop, 0, 0},
		{"other port of a ClusterIP that the node holds", flow("TCP", "veth1", pod, "10.96.0.12:8080"), NotOurs, 0, 0},
		{"ClusterIP of another proxy", flow("TCP", "veth1", pod, "10.96.0.99:80"), NotOurs, 0, 0},
		{"address elsewhere", flow("TCP", "veth1", pod, "192.0.2.1:80"), NotOurs, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := s.Decide(tt.flow)
			if v.Action != tt.want || v.Reason == "" {
				t.Fatalf("%s: %s, want %s", tt.flow, v, tt.want)
			}
			if tt.want != Forward {
				return
			}
			if v.Pool.Scope != tt.pool {
				t.Errorf("%s: pool %s, want %s", tt.flow, v.Pool.Scope, tt.pool)
			}
			for _, e := range v.Pool.Endpoints {
				if m := v.MasqueradeTo(e); m != tt.masq {
					t.Errorf("%s: masquerade to %s is %s, want %s", tt.flow, e.Addr, m, tt.masq)
				}
			}
		})
	}
}

// kubernetes#20475: an endpoint that reaches itself is masqueraded, and only it.
// Proves S3.9.
func TestDecideHairpin(t *testing.T) {
	s := testSnapshot(t)
	v := s.Decide(flow("TCP", "veth1", "10.244.1.10:4000", "10.96.0.10:80"))
	self, other := v.Pool.Endpoints[0], v.Pool.Endpoints[1]
	if v.MasqueradeTo(self) != MasqueradeYes || v.MasqueradeTo(other) != MasqueradeNo {
		t.Errorf("to itself %s, to the other %s", v.MasqueradeTo(self), v.MasqueradeTo(other))
	}
	v = s.Decide(flow("TCP", "eth0", "10.244.2.20:4000", "10.96.0.10:80"))
	if m := v.MasqueradeTo(v.Pool.Endpoints[1]); m != MasqueradeEither {
		t.Errorf("an endpoint elsewhere to itself: %s", m)
	}
}

// A host network endpoint on this node is reached without POSTROUTING.
func TestDecideLeavesMasqueradeOpenToItsOwnAddresses(t *testing.T) {
	hostNetwork := pool(Cluster, "10.244.2.20:80", "192.168.77.10:80")
	r := to(hostNetwork, MasqueradeYes)
	b := Empty().Edit()
	b.SetNode(testNode())
	b.Put(port("host", TCP, []*Pool{hostNetwork}, frontend(NodePort, "", 30080, r, r, r)))
	v := build(t, b).Decide(flow("TCP", "eth0", "198.51.100.7:4000", "192.168.77.10:30080"))
	far, here := hostNetwork.Endpoints[0], hostNetwork.Endpoints[1]
	if v.MasqueradeTo(far) != MasqueradeYes || v.MasqueradeTo(here) != MasqueradeEither {
		t.Errorf("elsewhere %s, here %s", v.MasqueradeTo(far), v.MasqueradeTo(here))
	}
}

func TestDetectorByInterface(t *testing.T) {
	n := testNode()
	n.Detectors = []Detector{{Family: IPv4, Interface: "veth", IsPrefix: true}, {Family: IPv6, Interface: "cni0"}}
	n.PodCIDRs = nil
	for _, tt := range []struct {
		f      Flow
		want   Origin
		onNode bool
	}{
		{flow("TCP", "veth12", "10.244.1.9:1", "10.96.0.1:1"), FromPod, true},
		{flow("TCP", "eth0", "10.244.1.9:1", "10.96.0.1:1"), FromOutside, false},
		{flow("TCP", "eth0", "10.244.1.1:1", "10.96.0.1:1"), FromNode, true},
		{flow("TCP", "", "203.0.113.9:1", "10.96.0.1:1"), FromNode, true},
		{flow("TCP", "cni0", "[fd00::9]:1", "[fd00::1]:1"), FromPod, true},
		{flow("TCP", "cni01", "[fd00::9]:1", "[fd00::1]:1"), FromOutside, false},
	} {
		if got := n.Origin(tt.f); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.f, got, tt.want)
		}
		if got := n.SourceOnNode(tt.f); got != tt.onNode {
			t.Errorf("%s: source on node %v", tt.f, got)
		}
	}
}

func TestVerdictAgrees(t *testing.T) {
	s := testSnapshot(t)
	v := s.Decide(flow("TCP", "veth1", "10.244.1.9:4000", "10.96.0.10:80"))
	near, far := netip.MustParseAddrPort("10.244.1.10:80"), netip.MustParseAddrPort("10.244.2.20:80")
	ok := []Outcome{{Action: Forward, Endpoint: near}, {Action: Forward, Endpoint: far}}
	for _, tt := range []struct {
		name, want string
		outcomes   []Outcome
	}{
		{"all reached", "", ok},
		{"nothing", "comes to no end", nil},
		{"one is missing", "10.244.2.20:80 is never chosen", ok[:1]},
		{"a stranger", "is no endpoint", append(ok[:2:2], Outcome{Action: Forward, Endpoint: netip.MustParseAddrPort("10.244.9.9:80")})},
		{"masqueraded", "is masqueraded", []Outcome{{Action: Forward, Endpoint: near, Masqueraded: true}, ok[1]}},
		{"refused", "the kernel's answer is reject", append(ok[:2:2], Outcome{Action: Reject})},
	} {
		err := v.Agrees(Explanation{Outcomes: tt.outcomes})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	reject := s.Decide(flow("TCP", "veth1", "10.244.1.9:4000", "10.96.0.11:80"))
	if err := reject.Agrees(Explanation{Outcomes: []Outcome{{Action: Reject}}}); err != nil {
		t.Error(err)
	}
}
