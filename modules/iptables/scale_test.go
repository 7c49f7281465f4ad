package iptables

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// BenchmarkScale times a cold start with N Services of five endpoints, a
// change of one endpoint, a new Service, an audit from nothing, a restart, an
// audit of what nobody has touched, a resync after somebody has, and the repair
// after "iptables -t nat -F".
//
//	go test -run '^$' -bench Scale -benchtime 1x
func BenchmarkScale(b *testing.B) {
	for _, backend := range []string{netfilter.NFT, netfilter.Legacy} {
		for _, n := range []int{100, 1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", backend, n), func(b *testing.B) {
				for range b.N {
					scale(b, backend, n)
				}
			})
		}
	}
}

func scale(b *testing.B, backend string, n int) {
	r := rig.New(b, rig.Options{})
	sps := many(n)
	want := snapshotOf(b, sps...)
	plane := openOn(b, r.Node, backend, dataplane.IPv4)
	measure := func(what string, f func() error) {
		start := time.Now()
		if err := r.Node.Do(f); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/1000, what)
	}
	sync := func() error {
		_, err := plane.Sync(b.Context(), dataplane.SyncRequest{Want: want})
		return err
	}
	measure("cold-ms", sync)
	heap(b)
	changed := *sps[n/2]
	changed.Pools = []*dataplane.Pool{pool(dataplane.Cluster, endpoints("10.244.9.9:8080"))}
	changed.Frontends = nil
	addFrontend(&changed, dataplane.ClusterIP, netip.AddrPortFrom(sps[n/2].Frontends[0].Addr, 80), internalRoutes(changed.Pools[0]))
	edit := want.Edit()
	edit.Put(&changed)
	want = built(b, edit)
	measure("change-ms", sync)
	edit = want.Edit()
	edit.Put(clusterIP("another", "10.96.200.1:80", endpoints("10.244.9.9:8080")))
	want = built(b, edit)
	measure("new-ms", sync)
	plane = openOn(b, r.Node, backend, dataplane.IPv4)
	audit := func() error {
		_, err := plane.Audit(b.Context(), want)
		return err
	}
	measure("audit-ms", audit)
	measure("restart-ms", sync)
	measure("idle-audit-ms", audit) // nobody has written since
	if _, err := r.Node.Run(b.Context(), "iptables-"+backend, "-A", "INPUT", "-s", "192.0.2.77", "-j", "DROP"); err != nil {
		b.Fatal(err)
	}
	resync := func() error {
		_, err := plane.Sync(b.Context(), dataplane.SyncRequest{Want: want, Distrust: true})
		return err
	}
	measure("resync-ms", resync) // somebody has
	if _, err := r.Node.Run(b.Context(), "iptables-"+backend, "-t", "nat", "-F"); err != nil {
		b.Fatal(err)
	}
	measure("repair-ms", resync)
}

// heap reports what is in use after a collection.
func heap(b *testing.B) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "heap-MB")
}
