package userspace

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// BenchmarkScale takes a node from nothing to many Services, gives one of them
// another port, then other endpoints, and starts anew. What each takes is what the
// metrics say, by the clock and in time of processors, that of iptables included:
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
		began, used := time.Now(), processors(b)
		s.sync(want, false)
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, what+"-ms")
		b.ReportMetric(float64((processors(b)-used).Microseconds())/1000, what+"-cpu-ms")
	}
	measure("cold")
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "heap-MB")
	sps[n/2] = changed(sps[n/2])
	want = edited(b, want.Edit(), sps[n/2])
	measure("change")
	next := *sps[n/2]
	next.Serving = append(next.Serving, next.Pools[0].Endpoints[0].Addr)
	want = edited(b, want.Edit(), &next)
	measure("endpoints")
	s.close()
	s.open()
	measure("restart")
	s.close()
}

// processors is the time that this process and those that it has waited for have
// had of them.
func processors(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var used syscall.Rusage
		if err := syscall.Getrusage(who, &used); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return sum
}
