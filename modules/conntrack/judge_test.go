package conntrack_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
)

// The world of the tests: a node with one Service port in both families.
var (
	nodeIP4   = addr("192.168.77.10")
	nodeIP6   = addr("fd00:77::10")
	extraIP   = addr("192.168.99.10") // an address of the node that takes no NodePorts
	otherNode = addr("192.168.77.20")
	client4   = port("10.244.1.2:40000")
	client6   = port("[fd00:244:1::2]:40000")

	vip4, vip6   = port("10.96.0.10:53"), port("[fd00:96::10]:53")
	lb4, ext4    = port("198.51.100.1:53"), port("198.51.100.2:53")
	e1, e2       = port("10.244.1.11:5353"), port("10.244.1.12:5353")
	remote       = port("10.244.2.11:5353")
	e16          = port("[fd00:244:1::11]:5353")
	stranger     = port("10.244.1.99:5353")
	nodePort     = uint16(30053)
	dnsName      = dataplane.ServicePortName{Namespace: "kube-system", Name: "dns", Port: "dns", Protocol: dataplane.UDP}
	dnsFrontends = []netip.AddrPort{vip4, vip6, lb4, ext4}
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func port(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// frontend builds one that forwards to the pool, or rejects where it is nil.
func frontend(kind dataplane.Kind, at netip.AddrPort, pool *dataplane.Pool) *dataplane.Frontend {
	f := &dataplane.Frontend{Kind: kind, Family: dataplane.FamilyOf(at.Addr()), Addr: at.Addr(), Port: at.Port()}
	if kind == dataplane.NodePort {
		f.Addr = netip.Addr{}
	}
	for i := range f.Routes {
		f.Routes[i].Action = dataplane.Reject
		if pool != nil {
			f.Routes[i] = dataplane.Route{Action: dataplane.Forward, Pool: pool}
		}
	}
	return f
}

func pool(family dataplane.Family, eps ...netip.AddrPort) *dataplane.Pool {
	p := &dataplane.Pool{Family: family}
	for _, e := range eps {
		if dataplane.FamilyOf(e.Addr()) == family {
			p.Endpoints = append(p.Endpoints, dataplane.Endpoint{Addr: e, Weight: 1})
		}
	}
	if p.Endpoints == nil {
		return nil
	}
	return p
}

// dns is the Service port of the tests with the given usable endpoints; those
// that still serve are serving.
func dns(serving []netip.AddrPort, usable ...netip.AddrPort) *dataplane.ServicePort {
	sp := &dataplane.ServicePort{Name: dnsName, Serving: slices.SortedFunc(slices.Values(serving), netip.AddrPort.Compare)}
	pools := make(map[dataplane.Family]*dataplane.Pool)
	for _, f := range dataplane.Families() {
		if p := pool(f, usable...); p != nil {
			pools[f] = p
			sp.Pools = append(sp.Pools, p)
		}
		at := netip.AddrPortFrom(f.Unspecified(), nodePort)
		sp.Frontends = append(sp.Frontends, frontend(dataplane.NodePort, at, pools[f]))
	}
	for i, at := range dnsFrontends {
		kind := []dataplane.Kind{dataplane.ClusterIP, dataplane.ClusterIP, dataplane.LoadBalancerIP, dataplane.ExternalIP}[i]
		sp.Frontends = append(sp.Frontends, frontend(kind, at, pools[dataplane.FamilyOf(at.Addr())]))
	}
	return sp
}

var testNode = &dataplane.Node{
	Addresses:     []netip.Addr{nodeIP4, extraIP, nodeIP6},
	NodePortAddrs: []netip.Addr{nodeIP4, nodeIP6},
}

func snapshot(t testing.TB, ports ...*dataplane.ServicePort) *dataplane.Snapshot {
	t.Helper()
	return next(t, dataplane.Empty(), func(b *dataplane.Builder) {
		b.SetNode(testNode)
		for _, sp := range ports {
			b.Put(sp)
		}
	})
}

func next(t testing.TB, s *dataplane.Snapshot, edit func(*dataplane.Builder)) *dataplane.Snapshot {
	t.Helper()
	b := s.Edit()
	edit(b)
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// flow is an entry of a client that sent to dst and is answered by src.
func flow(dst, src netip.AddrPort) conntrack.Entry {
	client := client4
	if dst.Addr().Is6() {
		client = client6
	}
	return conntrack.Entry{
		Protocol: dataplane.UDP,
		Orig:     conntrack.Tuple{Src: client, Dst: dst},
		Reply:    conntrack.Tuple{Src: src, Dst: client},
	}
}

func with(e conntrack.Entry, change func(*conntrack.Entry)) conntrack.Entry {
	change(&e)
	return e
}

func nodePortOf(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, nodePort) }

func key(at netip.AddrPort) dataplane.FrontendKey {
	return dataplane.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: dataplane.UDP}
}

// Proves S7.3, S7.4, S7.5, S7.6.
func TestJudge(t *testing.T) {
	const keep, gone, never, removedFrontend = conntrack.Keep, conntrack.EndpointGone, conntrack.NeverTranslated, conntrack.FrontendGone
	all := []netip.AddrPort{e1, remote, e16}
	live := snapshot(t, dns(all, all...))
	empty := snapshot(t, dns(nil))
	deleted := snapshot(t)
	removed := conntrack.Removed{
		key(vip4): true, key(vip6): true,
		key(nodePortOf(dataplane.IPv4.Unspecified())): true, key(nodePortOf(dataplane.IPv6.Unspecified())): true,
	}
	hostNetwork := port("192.168.77.10:53")
	own := pool(dataplane.IPv4, hostNetwork)
	ownEndpoint := snapshot(t, &dataplane.ServicePort{
		Name: dnsName, Serving: []netip.AddrPort{hostNetwork}, Pools: []*dataplane.Pool{own},
		Frontends: []*dataplane.Frontend{frontend(dataplane.ExternalIP, hostNetwork, own)},
	})
	// internalTrafficPolicy Local, and all endpoints are elsewhere.
	local := &dataplane.ServicePort{Name: dnsName, Serving: []netip.AddrPort{remote}}
	local.Frontends = []*dataplane.Frontend{frontend(dataplane.ClusterIP, vip4, nil)}
	localEmpty := snapshot(t, local)

	other := &dataplane.ServicePort{Name: dataplane.ServicePortName{Namespace: "other", Name: "web", Protocol: dataplane.UDP}, Serving: []netip.AddrPort{e1, e2}}
	shared := snapshot(t, dns(all, all...), other)

	for _, c := range []struct {
		name    string
		snap    *dataplane.Snapshot
		removed conntrack.Removed
		entry   conntrack.Entry
		want    conntrack.Verdict
	}{
		{"ClusterIP to an endpoint", live, nil, flow(vip4, e1), keep},
		{"ClusterIP to an endpoint elsewhere", live, nil, flow(vip4, remote), keep},
		{"ClusterIP, IPv6", live, nil, flow(vip6, e16), keep},
		{"k8s#19029: the endpoint is gone", live, nil, flow(vip4, e2), gone},
		{"cilium#27726: the endpoint serves another Service only", shared, nil, flow(vip4, e2), gone},
		{"the endpoint serves this Service too", shared, nil, flow(vip4, e1), keep},
		{"the endpoint's address with another port", live, nil, flow(vip4, port("10.244.1.11:5354")), gone},
		{"the endpoint is gone, IPv6", live, nil, flow(vip6, port("[fd00:244:1::12]:5353")), gone},
		{"LoadBalancer IP to an endpoint", live, nil, flow(lb4, e1), keep},
		{"LoadBalancer IP to nowhere", live, nil, flow(lb4, e2), gone},
		{"externalIP to nowhere", live, nil, flow(ext4, e2), gone},
		{"NodePort to an endpoint", live, nil, flow(nodePortOf(nodeIP4), e1), keep},
		{"NodePort to nowhere", live, nil, flow(nodePortOf(nodeIP4), e2), gone},
		{"NodePort to nowhere, IPv6", live, nil, flow(nodePortOf(nodeIP6), port("[fd00::1]:1")), gone},
		{"felix#2588: NodePort of another node", live, nil, flow(nodePortOf(otherNode), e2), keep},
		{"NodePort on an address that takes none", live, nil, flow(nodePortOf(extraIP), e2), keep},
		{"another port of a ClusterIP", live, nil, flow(port("10.96.0.10:54"), e2), keep},
		{"no Service at all", live, nil, flow(port("8.8.8.8:53"), port("8.8.8.8:53")), keep},
		{"the translation of somebody else", live, nil, flow(port("192.168.77.10:8053"), e2), keep},
		{"straight to an endpoint", live, nil, flow(e1, e1), keep},
		{"masqueraded", live, nil, with(flow(vip4, e1), func(e *conntrack.Entry) { e.Reply.Dst = port("192.168.77.10:61000") }), keep},
		{"masqueraded to nowhere", live, nil, with(flow(vip4, e2), func(e *conntrack.Entry) { e.Reply.Dst = port("192.168.77.10:61000") }), gone},

		{"k8s#48370: never translated", live, nil, flow(vip4, vip4), never},
		{"never translated, IPv6", live, nil, flow(vip6, vip6), never},
		{"never translated, NodePort", live, nil, flow(nodePortOf(nodeIP4), nodePortOf(nodeIP4)), never},
		{"k8s#105657: never translated, and nothing is ready", empty, nil, flow(vip4, vip4), keep},
		{"k8s#126934: never translated, others' endpoints serve", localEmpty, nil, flow(vip4, vip4), keep},
		{"never translated, in the zone of a switch", live, nil, with(flow(vip4, vip4), func(e *conntrack.Entry) { e.Zone = 7 }), keep},
		{"to nowhere, in a zone", live, nil, with(flow(vip4, e2), func(e *conntrack.Entry) { e.Zone = 7 }), gone},
		{"a frontend that is its own endpoint", ownEndpoint, nil, flow(hostNetwork, hostNetwork), keep},

		{"k8s#139628: no endpoint is left", empty, nil, flow(vip4, e1), gone},
		{"no endpoint is left, NodePort", empty, nil, flow(nodePortOf(nodeIP4), e1), gone},

		{"k8s PR 141371: the Service is gone", deleted, removed, flow(vip4, e1), removedFrontend},
		{"the Service is gone, IPv6", deleted, removed, flow(vip6, e16), removedFrontend},
		{"the Service is gone, NodePort", deleted, removed, flow(nodePortOf(nodeIP4), e1), removedFrontend},
		{"the Service is gone, NodePort IPv6", deleted, removed, flow(nodePortOf(nodeIP6), e16), removedFrontend},
		{"the Service is gone, NodePort of another node", deleted, removed, flow(nodePortOf(otherNode), e1), keep},
		{"the Service is gone, never translated", deleted, removed, flow(vip4, vip4), keep},
		{"the Service is gone, another port", deleted, removed, flow(port("10.96.0.10:54"), e1), keep},
		{"the Service is gone and nobody said so", deleted, nil, flow(vip4, e1), keep},
		{"the Service has come back", live, removed, flow(vip4, e1), keep},
		{"the Service has come back with other endpoints", live, removed, flow(vip4, e2), gone},

		{"TCP", live, removed, with(flow(vip4, e2), func(e *conntrack.Entry) { e.Protocol = dataplane.TCP }), keep},
		{"SCTP", live, removed, with(flow(vip4, e2), func(e *conntrack.Entry) { e.Protocol = dataplane.SCTP }), keep},
		{"TCP of a deleted Service", deleted, removed, with(flow(vip4, e1), func(e *conntrack.Entry) { e.Protocol = dataplane.TCP }), keep},
		{"ICMP", live, removed, with(flow(vip4, e2), func(e *conntrack.Entry) { e.Protocol = dataplane.ICMP }), keep},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := conntrack.Judge(c.snap, c.removed, c.entry); got != c.want {
				t.Errorf("%s: %s, want %s", c.entry, got, c.want)
			}
		})
	}
}

// TestTerminatingEndpointKeepsItsFlows: what serves is right for a flow that
// exists, also when new flows go elsewhere (KEP-1669).
// Proves S7.6.
func TestTerminatingEndpointKeepsItsFlows(t *testing.T) {
	s := snapshot(t, dns([]netip.AddrPort{e1, e2}, e1))
	if got := conntrack.Judge(s, nil, flow(vip4, e2)); got.Stale() {
		t.Errorf("flow to a serving endpoint outside of the pool: %s", got)
	}
}

// FuzzJudge checks what must hold for any entry: only UDP entries of frontends
// are stale, never one that leads to a serving endpoint, and after its deletion
// the flow that Decide allows is right.
// Proves S7.6.
func FuzzJudge(f *testing.F) {
	live := snapshot(f, dns([]netip.AddrPort{e1, remote, e16}, e1, e16))
	bare := snapshot(f)
	dsts := []netip.AddrPort{vip4, vip6, lb4, ext4, nodePortOf(nodeIP4), nodePortOf(otherNode), nodePortOf(extraIP), e1, stranger}
	f.Add(uint8(17), uint8(0), uint8(0), uint16(53), uint16(0), false)
	f.Add(uint8(17), uint8(4), uint8(3), uint16(30053), uint16(0), true)
	f.Add(uint8(6), uint8(1), uint8(2), uint16(53), uint16(3), true)
	f.Fuzz(func(t *testing.T, proto, to, by uint8, toPort, zone uint16, isRemoved bool) {
		dst := netip.AddrPortFrom(dsts[int(to)%len(dsts)].Addr(), toPort)
		replies := append(slices.Clone(dsts), dst, e2, remote, e16)
		e := flow(dst, replies[int(by)%len(replies)])
		e.Protocol, e.Zone = dataplane.Protocol(proto), zone
		removed := conntrack.Removed{}
		if isRemoved {
			removed[key(dst)] = true
			removed[key(nodePortOf(dataplane.FamilyOf(dst.Addr()).Unspecified()))] = true
		}
		v := live.Decide(dataplane.Flow{Src: e.Orig.Src, Dst: dst, Protocol: e.Protocol, InInterface: "veth"})
		for _, s := range []*dataplane.Snapshot{live, bare} {
			got := conntrack.Judge(s, removed, e)
			if got.Stale() && e.Protocol != dataplane.UDP {
				t.Errorf("%s: %s", e, got)
			}
			if got.Stale() && s == bare && (len(removed) == 0 || !e.Translated()) {
				t.Errorf("%s: %s without any frontend", e, got)
			}
			if s != live || v.Frontend == nil {
				continue
			}
			_, serving := slices.BinarySearchFunc(v.ServicePort.Serving, e.Reply.Src, netip.AddrPort.Compare)
			if e.Protocol == dataplane.UDP && e.Translated() && got.Stale() == serving {
				t.Errorf("%s: %s, serving: %v", e, got, serving)
			}
		}
	})
}

func TestVerdictsHaveNames(t *testing.T) {
	for v := conntrack.Keep; v <= conntrack.FrontendGone; v++ {
		if s := v.String(); s == "" || s == fmt.Sprintf("Verdict(%d)", v) {
			t.Errorf("verdict %d has no name", v)
		}
	}
}

// BenchmarkJudge is what one entry costs, among 10,000 UDP Services.
func BenchmarkJudge(b *testing.B) {
	s := next(b, snapshot(b), func(bl *dataplane.Builder) {
		for i := range 10000 {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), 53)
			p := pool(dataplane.IPv4, e1)
			bl.Put(&dataplane.ServicePort{
				Name:  dataplane.ServicePortName{Namespace: "n", Name: fmt.Sprint(i), Protocol: dataplane.UDP},
				Pools: []*dataplane.Pool{p}, Serving: []netip.AddrPort{e1},
				Frontends: []*dataplane.Frontend{frontend(dataplane.ClusterIP, at, p)},
			})
		}
	})
	e := flow(port("10.97.4.4:53"), e1)
	b.ReportAllocs()
	for b.Loop() {
		if conntrack.Judge(s, nil, e).Stale() {
			b.Fatal(e)
		}
	}
}
