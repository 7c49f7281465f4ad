package netfilter

import (
	"fmt"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// BenchmarkColdStart writes 10,000 chains into an empty table, cut in parts
// of different sizes; run it with -benchtime=1x.
func BenchmarkColdStart(b *testing.B) {
	tx := bigTransaction(10000, 5)
	for _, name := range []string{"nft", "legacy"} {
		for _, size := range []int{100, 250, 500, 1000, 2500, 10000} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				enterNamespace(b)
				h := NewHost(testBackend(name, dataplane.IPv4), time.Second)
				for b.Loop() {
					start := time.Now()
					for _, part := range tx.Split(size) {
						restore(b, h, part)
					}
					b.ReportMetric(time.Since(start).Seconds(), "s/start")
				}
			})
		}
	}
}
