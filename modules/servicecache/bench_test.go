package servicecache

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// BenchmarkChange is what one EndpointSlice costs among n Services of five
// endpoints.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := many(b, n, 5)
			versions := [2]any{manySlice(n/2, 5, 1), manySlice(n/2, 5, 2)}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				set(b, c, versions[i%2])
				build(c)
			}
		})
	}
}

// BenchmarkServiceChange is what a Service costs that gains and loses an
// externalIP.
func BenchmarkServiceChange(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := many(b, n, 5)
			with := manyService(n / 2)
			with.Spec.ExternalIPs = []string{extIP}
			versions := [2]any{manyService(n / 2), with}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				set(b, c, versions[i%2])
				build(c)
			}
		})
	}
}

// BenchmarkMemory is what the cache and its snapshot keep of a Service with
// five endpoints.
func BenchmarkMemory(b *testing.B) {
	const n = 10000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		before := heap()
		start := time.Now()
		c := many(b, n, 5)
		took := time.Since(start)
		b.ReportMetric(float64(heap()-before)/n, "B/service")
		b.ReportMetric(float64(took.Milliseconds()), "ms/10k")
		runtime.KeepAlive(c)
	}
}
