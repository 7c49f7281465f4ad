package iptables

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

// shares asks the rules for the probability of each endpoint.
func shares(t *testing.T, sp *dataplane.ServicePort) map[netip.AddrPort]float64 {
	t.Helper()
	p := fakePlane(netfiltertest.New(dataplane.IPv4))
	mustSync(t, p, snapshotOf(t, sp), time.Time{}, false)
	e, err := p.Explain(t.Context(), dataplane.Flow{
		Src: netip.MustParseAddrPort("10.244.1.2:40000"), Dst: netip.AddrPortFrom(sp.Frontends[0].Addr, 80),
		Protocol: dataplane.TCP, InInterface: "vethc",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[netip.AddrPort]float64)
	for _, o := range e.Outcomes {
		got[o.Endpoint] += o.Probability
	}
	return got
}

// kubernetes#73324: the choice is even among any number of endpoints, and by
// weight where they have one, with affinity too.
// Proves S2.11.
func TestEndpointsAreChosenByWeight(t *testing.T) {
	for _, n := range []int{1, 2, 3, 31, 32, 33, 65, 300, 1000} {
		for _, weighted := range []bool{false, true} {
			for _, affinity := range []time.Duration{0, time.Hour} {
				sp := clusterIP("web", "10.96.0.1:80", numberedEndpoints("10.9.a.b:80", n))
				sp.Affinity = affinity
				var sum float64
				for i := range sp.Pools[0].Endpoints {
					if weighted {
						sp.Pools[0].Endpoints[i].Weight = uint16(1 + i%7)
					}
					sum += float64(sp.Pools[0].Endpoints[i].Weight)
				}
				got := shares(t, sp)
				for _, e := range sp.Pools[0].Endpoints {
					want := float64(e.Weight) / sum
					if off := math.Abs(got[e.Addr]/want - 1); off > 1e-5 {
						t.Errorf("%d endpoints, weighted %t, affinity %s: %s is chosen with %.9f, want %.9f",
							n, weighted, affinity, e.Addr, got[e.Addr], want)
					}
				}
			}
		}
	}
}

// A change of one of many endpoints rewrites its group and what chooses among
// the groups.
func TestChangeOfOneAmongManyEndpoints(t *testing.T) {
	es := numberedEndpoints("10.9.a.b:80", 1000)
	k := &recorder{Kernel: netfiltertest.New(dataplane.IPv4)}
	p := fakePlane(k)
	want := snapshotOf(t, clusterIP("web", "10.96.0.1:80", es))
	mustSync(t, p, want, time.Time{}, false)
	edit := want.Edit()
	edit.Put(clusterIP("web", "10.96.0.1:80", es[1:]))
	want = built(t, edit)
	k.writes = nil
	if r := mustSync(t, p, want, time.Time{}, false); r.Writes > 100 || len(k.writes) != 1 {
		t.Errorf("%d rules and entries in %d transactions are written, want about 65 in one", r.Writes, len(k.writes))
	}
}
