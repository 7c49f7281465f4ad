package netfilter

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// BenchmarkAtScale shows what things cost when there are 10,000 chains; run it
// with -benchtime=3x.
func BenchmarkAtScale(b *testing.B) {
	tx := bigTransaction(10000, 5)
	for _, name := range []string{NFT, Legacy} {
		b.Run(name, func(b *testing.B) {
			enterNamespace(b)
			h := NewHost(testBackend(name, dataplane.IPv4), time.Second)
			for _, part := range tx.Split(h.backend.ChainsPerRestore()) {
				restore(b, h, part)
			}
			restore(b, h, Transaction{Table: Mangle, Chains: []Chain{chain("KUBE-IPTABLES-HINT")}})
			steps := []struct {
				name string
				do   func()
			}{
				{"detect", func() {
					if got, err := Detect(b.Context(), dataplane.IPv4); err != nil || got.Name != name {
						b.Fatal(got, err)
					}
				}},
				{"one-chain", func() { restore(b, h, Transaction{Table: NAT, Chains: tx.Chains[:1]}) }},
				{"read", func() { save(b, h, NAT) }},
				{"walk", func() { walkOnce(b, h, tx.Chains[5000].Name) }},
				{"remove", func() { removeAll(b, h) }},
			}
			for _, s := range steps {
				start := time.Now()
				s.do()
				b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-"+s.name)
			}
		})
	}
}

func walkOnce(b *testing.B, h *Host, to string) {
	w, err := ReadWalker(b.Context(), h)
	if err != nil {
		b.Fatal(err)
	}
	w.Rules[NAT]["OUTPUT"] = Chain{Name: "OUTPUT", Rules: []Rule{{Target: Jump(to)}}}
	got := follow(b, w, Packet{
		Source: netip.MustParseAddrPort("10.0.0.1:1"), Destination: netip.MustParseAddrPort("10.0.0.2:80"),
		Protocol: dataplane.TCP,
	})
	if len(got) != 5 {
		b.Fatal(fmt.Sprint(got))
	}
}

func removeAll(b *testing.B, h *Host) {
	if err := Remove(b.Context(), h, Owned{Chain: func(Table, string) bool { return true }}); err != nil {
		b.Fatal(err)
	}
	if left := save(b, h, NAT); len(left) > 5 {
		b.Fatalf("%d chains left", len(left))
	}
}
