package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

// The rules mean what the snapshot decides, for every route that the contract
// allows, also those that no traffic policy leads to; and however the snapshot
// was reached. The kernel in memory makes thousands of cases cheap; the laws
// send packets.
func TestRulesMeanWhatIsDecided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := fakePlane(netfiltertest.New(dataplane.IPv4))
		want := dataplane.Empty()
		for range rapid.IntRange(1, 3).Draw(t, "steps") {
			want = drawSnapshot(t, want)
			r, err := p.Sync(t.Context(), dataplane.SyncRequest{Want: want})
			if err != nil || len(r.Failed) > 0 {
				t.Fatalf("sync: %v, failed %v", err, r.Failed)
			}
		}
		for _, f := range flows(want) {
			e, err := p.Explain(t.Context(), f)
			if err == nil {
				err = want.Decide(f).Agrees(e)
			}
			if err != nil {
				t.Fatalf("%s: %v\n%+v", f, err, e)
			}
		}
		if found, err := p.Audit(t.Context(), want); err != nil || len(found) > 0 {
			t.Fatalf("audit: %v, %v", found, err)
		}
	})
}

// drawSnapshot draws a node and some ServicePorts anew.
func drawSnapshot(t *rapid.T, old *dataplane.Snapshot) *dataplane.Snapshot {
	b := old.Edit()
	n := testNode()
	n.DropUnallocated = rapid.Bool().Draw(t, "drop unallocated")
	detectors := [][]dataplane.Detector{
		nil, n.Detectors,
		{{Family: dataplane.IPv4, Prefix: rig.PodRange4}},
		{{Family: dataplane.IPv4, Prefix: netip.MustParsePrefix("0.0.0.0/0")}},
		{{Family: dataplane.IPv4, Interface: "veth", IsPrefix: true}},
		{{Family: dataplane.IPv4, Interface: "cni0"}},
	}
	n.Detectors = detectors[rapid.IntRange(0, len(detectors)-1).Draw(t, "detector")]
	b.SetNode(n)
	for i := range 3 {
		name := tcp(fmt.Sprint("svc", i))
		if rapid.Bool().Draw(t, "exists") {
			b.Put(drawServicePort(t, name, i))
		} else {
			b.Delete(name)
		}
	}
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func drawServicePort(t *rapid.T, name dataplane.ServicePortName, i int) *dataplane.ServicePort {
	local := endpoints("10.244.1.11:80", "10.244.1.12:8080")
	all := append(slices.Clone(local), endpoints("10.244.2.11:80", "192.168.77.20:80")...)
	sp := &dataplane.ServicePort{
		Name: name, Pools: []*dataplane.Pool{pool(dataplane.Cluster, all), pool(dataplane.Local, local)},
	}
	if rapid.Bool().Draw(t, "affinity") {
		sp.Affinity = time.Minute
	}
	for kind, at := range []string{ // by Kind
		"10.96.0.%d:80", "198.51.100.%d:80", "198.51.100.10%d:80", "0.0.0.0:3000%d",
	} {
		kind := dataplane.Kind(kind)
		f := addFrontend(sp, kind, netip.MustParseAddrPort(fmt.Sprintf(at, i)), drawRoutes(t, sp.Pools))
		if kind != dataplane.ClusterIP && rapid.Bool().Draw(t, "has ranges") {
			f.Sources = drawSources(t)
		}
	}
	return sp
}

func drawRoutes(t *rapid.T, pools []*dataplane.Pool) [3]dataplane.Route {
	var routes [3]dataplane.Route
	for o := range routes {
		routes[o].Action = rapid.SampledFrom([]dataplane.Action{
			dataplane.Forward, dataplane.Forward, dataplane.Forward, dataplane.Reject, dataplane.Drop,
		}).Draw(t, "action")
		if routes[o].Action == dataplane.Forward {
			routes[o].Pool = pools[rapid.IntRange(0, len(pools)-1).Draw(t, "pool")]
			routes[o].Masquerade = rapid.SampledFrom([]dataplane.Masquerade{
				dataplane.MasqueradeNo, dataplane.MasqueradeYes, dataplane.MasqueradeEither, dataplane.MasqueradeRemote,
			}).Draw(t, "masquerade")
		}
	}
	if rapid.Bool().Draw(t, "all origins alike") {
		return each(routes[0])
	}
	return routes
}

func drawSources(t *rapid.T) *dataplane.SourceRanges {
	prefixes := rapid.SliceOfDistinct(rapid.SampledFrom([]netip.Prefix{
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("10.244.0.0/15"), rig.PodRange4,
		netip.MustParsePrefix("10.244.1.2/32"), rig.NodeRange4, netip.MustParsePrefix("0.0.0.0/0"),
	}), netip.Prefix.String).Draw(t, "ranges")
	return &dataplane.SourceRanges{Prefixes: prefixes, Node: rapid.Bool().Draw(t, "node allowed")}
}

// flows are those of all origins to all frontends, and past them.
func flows(s *dataplane.Snapshot) []dataplane.Flow {
	var to []netip.AddrPort
	for sp := range s.ServicePorts() {
		for _, f := range sp.Frontends {
			if f.Kind == dataplane.NodePort {
				for _, a := range s.Node().NodePortAddrs {
					if a.Is4() {
						to = append(to, netip.AddrPortFrom(a, f.Port))
					}
				}
				continue
			}
			to = append(to, netip.AddrPortFrom(f.Addr, f.Port), netip.AddrPortFrom(f.Addr, 9999))
		}
	}
	for _, a := range []string{"10.96.99.99:80", "10.244.1.11:80", "192.168.77.10:22", "192.168.77.20:30000", "192.0.2.1:80"} {
		to = append(to, netip.MustParseAddrPort(a))
	}
	var all []dataplane.Flow
	for _, from := range []struct{ addr, iface string }{
		{"10.244.1.2", "vethc"},
		{"10.244.1.2", "cni0"},
		{"10.244.1.11", "vethe1"}, // an endpoint
		{"10.244.2.11", "eth0"},   // a pod of another node
		{"192.168.77.10", ""},     // the node
		{"192.168.77.20", "eth0"}, // another node
		{"203.0.113.7", "eth0"},
	} {
		for _, dst := range to {
			src := netip.AddrPortFrom(netip.MustParseAddr(from.addr), 40000)
			all = append(all, dataplane.Flow{Src: src, Dst: dst, Protocol: dataplane.TCP, InInterface: from.iface})
		}
	}
	return all
}
