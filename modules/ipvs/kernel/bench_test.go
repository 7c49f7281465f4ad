package kernel_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

const realsPerServer = 5

// many returns the ops that make n virtual servers with their real servers.
func many(n int) []kernel.Op {
	var ops []kernel.Op
	for i := range n {
		k := kernel.Key{Protocol: dataplane.TCP, Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80}
		ops = append(ops, kernel.Op{Verb: kernel.AddServer, Key: k, Server: rr()})
		for j := range realsPerServer {
			real := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(1 + j), byte(i >> 8), byte(i)}), 8080)
			ops = append(ops, kernel.Op{Verb: kernel.AddReal, Key: k, Real: real, Weight: 1})
		}
	}
	return ops
}

// deletion returns the ops that undo many.
func deletion(ops []kernel.Op) []kernel.Op {
	var out []kernel.Op
	for _, op := range ops {
		if op.Verb == kernel.AddServer {
			out = append(out, kernel.Op{Verb: kernel.DeleteServer, Key: op.Key})
		}
	}
	return out
}

func mustApply(b testing.TB, h kernel.Servers, ops []kernel.Op) {
	b.Helper()
	refused, err := h.Apply(b.Context(), ops)
	if err != nil {
		b.Fatal(err)
	}
	for i := range refused {
		b.Fatal(&refused[i])
	}
}

// BenchmarkScale: what a cold start, a full read and an end cost, with messages
// in batches and with one at a time, as github.com/moby/ipvs sends them.
func BenchmarkScale(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		ops := many(n)
		h := openHost(b)
		b.Run(fmt.Sprintf("%d/batches", n), func(b *testing.B) {
			var add, list, remove float64
			for b.Loop() {
				start := b.Elapsed()
				mustApply(b, h, ops)
				added := b.Elapsed()
				if got, err := h.List(context.Background(), dataplane.IPv4); err != nil || len(got) != n {
					b.Fatalf("got %d, %v", len(got), err)
				}
				listed := b.Elapsed()
				mustApply(b, h, deletion(ops))
				add += (added - start).Seconds()
				list += (listed - added).Seconds()
				remove += (b.Elapsed() - listed).Seconds()
			}
			report(b, add, list, remove)
		})
		if n > 1000 {
			continue // 10,000 one at a time take minutes
		}
		b.Run(fmt.Sprintf("%d/singly", n), func(b *testing.B) {
			moby := openMoby(b)
			var add, list, remove float64
			for b.Loop() {
				start := b.Elapsed()
				for _, op := range ops {
					var err error
					if op.Verb == kernel.AddServer {
						err = moby.NewService(mobyService(op.Key, "rr"))
					} else {
						err = moby.NewDestination(mobyService(op.Key, "rr"), mobyReal(op.Real, 1))
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				added := b.Elapsed()
				services, err := moby.GetServices()
				if err != nil || len(services) != n {
					b.Fatalf("got %d, %v", len(services), err)
				}
				for _, s := range services {
					if _, err := moby.GetDestinations(s); err != nil {
						b.Fatal(err)
					}
				}
				listed := b.Elapsed()
				for _, s := range services {
					if err := moby.DelService(s); err != nil {
						b.Fatal(err)
					}
				}
				add += (added - start).Seconds()
				list += (listed - added).Seconds()
				remove += (b.Elapsed() - listed).Seconds()
			}
			report(b, add, list, remove)
		})
	}
}

func report(b *testing.B, add, list, remove float64) {
	n := float64(b.N)
	b.ReportMetric(add/n, "s-add")
	b.ReportMetric(list/n, "s-list")
	b.ReportMetric(remove/n, "s-delete")
}
