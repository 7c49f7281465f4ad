package userspace

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// BenchmarkScale takes a node from nothing to many Services, gives one of them
// another port, then other endpoints, and starts anew. What one iteration takes
// is what the metrics say:
//
//	go test -run '^$' -bench Scale -benchtime 1x .
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
	s := &site{TB: b, Rig: rig.New(b, rig.Options{}), family: dataplane.IPv4, backend: backend}
	s.open()
	sps := many(n)
	want := snapshotOf(b, sps...)
	measure := func(what string) {
		began := time.Now()
		s.sync(want, false)
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, what)
	}
	measure("cold-ms")
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "heap-MB")
	sps[n/2] = changed(sps[n/2])
	want = edited(b, want.Edit(), sps[n/2])
	measure("change-ms")
	next := *sps[n/2]
	next.Serving = append(next.Serving, next.Pools[0].Endpoints[0].Addr)
	want = edited(b, want.Edit(), &next)
	measure("endpoints-ms")
	s.close()
	s.open()
	measure("restart-ms")
	s.close()
}
