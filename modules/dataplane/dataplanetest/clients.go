package dataplanetest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// manyClients is more than a list of xt_recent remembers.
const manyClients = 1000

const popular = `
node detect=ClusterCIDR
web TCP 80->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote affinity=1h
`

// clients shows that each of many clients of one Service keeps its endpoint.
// Proves S6.1.
func clients(t *testing.T, cfg Config) {
	t.Parallel()
	f := cfg.families()[0]
	cfg.Families = []dataplane.Family{f}
	b := syncedBed(t, cfg, popular)
	at := netip.MustParsePrefix(ofFamily(f, "198.18.0.0/16", "fd00:198::/64"))
	for _, argv := range [][]string{
		{"ip", "route", "add", "local", at.String(), "dev", "lo"},
		{"sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=1"}, // what a route makes local is not, to IPv6's bind
	} {
		if _, err := b.rig.Up.Run(t.Context(), argv...); err != nil {
			t.Fatal(err)
		}
	}
	to := netip.AddrPortFrom(clusterIPOf(b.service("web"), f), 80)
	first, moved := make([]string, manyClients), make([]error, manyClients)
	for again := range 2 {
		rig.Each(manyClients, func(i int) {
			p := rig.Probe{From: b.rig.Up, Proto: rig.TCP, To: to, Source: netip.AddrPortFrom(nth(at.Addr(), i+1), 0), Timeout: patience}
			switch got := p.Send(t.Context()); {
			case got.Outcome != rig.Answered:
				moved[i] = fmt.Errorf("client %s is %s", p.Source.Addr(), got)
			case again == 0:
				first[i] = got.Server
			case first[i] != got.Server && moved[i] == nil:
				moved[i] = fmt.Errorf("client %s met %s first, and then %s", p.Source.Addr(), first[i], got.Server)
			}
		})
	}
	if err := errors.Join(moved...); err != nil {
		t.Errorf("not all of %d clients keep their endpoint:\n%v", manyClients, err)
	}
	slices.Sort(first)
	if met := slices.Compact(first); len(met) != 3 {
		t.Errorf("%d clients met %v only", manyClients, met)
	}
}

// nth is the nth address after another, for n below 65536.
func nth(a netip.Addr, n int) netip.Addr {
	raw := a.AsSlice()
	low := int(raw[len(raw)-2])<<8 + int(raw[len(raw)-1]) + n
	raw[len(raw)-3] += byte(low >> 16)
	raw[len(raw)-2], raw[len(raw)-1] = byte(low>>8), byte(low)
	a, _ = netip.AddrFromSlice(raw)
	return a
}
