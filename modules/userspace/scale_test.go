package userspace

import (
	"fmt"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// BenchmarkScale takes a node from nothing to many Services, and then one of
// them to another port. Run it with -benchtime 1x.
func BenchmarkScale(b *testing.B) {
	for _, backend := range []string{netfilter.NFT, netfilter.Legacy} {
		for _, n := range []int{1000, 5000} {
			b.Run(fmt.Sprint(backend, " ", n), func(b *testing.B) {
				for b.Loop() {
					scale(b, backend, n)
				}
			})
		}
	}
}

func scale(b *testing.B, backend string, n int) {
	node := rig.New(b, rig.Options{}).Node
	var p *Plane
	sync := func(want *dataplane.Snapshot) (took time.Duration) {
		err := node.Do(func() (err error) {
			if p == nil {
				p, err = openWith(b.Context(), Options{Backend: backend}, dataplane.IPv4)
			}
			if err == nil {
				began := time.Now()
				_, err = p.Sync(b.Context(), dataplane.SyncRequest{Now: began, Want: want})
				took = time.Since(began)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		return took
	}
	b.ReportMetric(sync(many(b, n, false)).Seconds(), "s/first")
	b.ReportMetric(sync(many(b, n, true)).Seconds(), "s/change")
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
}
