package userspace

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// many is a snapshot of n Services with two endpoints each, of which the last is
// another version if changed.
func many(t testing.TB, n int, changed bool) *dataplane.Snapshot {
	t.Helper()
	b := dataplane.Empty().Edit()
	node := netip.MustParseAddr("192.168.77.10")
	b.SetNode(&dataplane.Node{PrimaryIPs: []netip.Addr{node}, Addresses: []netip.Addr{node}, Mark: 1 << 14})
	for i := range n {
		pool := &dataplane.Pool{Family: dataplane.IPv4}
		for e := range byte(2) {
			a := netip.AddrFrom4([4]byte{10, 244, byte(i), e})
			pool.Endpoints = append(pool.Endpoints, dataplane.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Weight: 1})
		}
		r := dataplane.Route{Action: dataplane.Forward, Pool: pool}
		port := uint16(80)
		if changed && i == n-1 {
			port = 81
		}
		b.Put(&dataplane.ServicePort{
			Name:  dataplane.ServicePortName{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: dataplane.TCP},
			Pools: []*dataplane.Pool{pool},
			Frontends: []*dataplane.Frontend{{
				Kind: dataplane.ClusterIP, Family: dataplane.IPv4, Port: port, Routes: [3]dataplane.Route{r, r, r},
				Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
			}},
		})
	}
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ports gives each pool a port of its own.
func ports() func(poolKey) (netip.AddrPort, bool) {
	given := make(map[poolKey]uint16)
	return func(k poolKey) (netip.AddrPort, bool) {
		if given[k] == 0 {
			given[k] = firstPort + uint16(len(given))
		}
		return netip.AddrPortFrom(netip.MustParseAddr("192.168.77.10"), given[k]), true
	}
}

// Cost in rules, by number of Services: a change rewrites the buckets that it
// concerns, however many Services there are.
// Proves kubernetes#139513.
func TestCost(t *testing.T) {
	for _, c := range []struct{ services, rules, change int }{
		{10, 86, 10},
		{100, 536, 10},
		{1000, 3752, 20},
	} {
		at := ports()
		wish := build(many(t, c.services, false), dataplane.IPv4, at)
		rules := 0
		for _, chain := range wish.chains {
			rules += len(chain)
		}
		next := build(many(t, c.services, true), dataplane.IPv4, at)
		p := makePlan(&next, confirmed(&wish))
		if n := p.writes(); rules > c.rules || n > c.change {
			t.Errorf("%d Services: %d rules and %d written for a change, want at most %d and %d", c.services, rules, n, c.rules, c.change)
		}
	}
}

// Proves kubernetes#3760.
func TestNamesFitAndDiffer(t *testing.T) {
	n := dataplane.ServicePortName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 15), Protocol: dataplane.SCTP}
	other := n
	other.Protocol = dataplane.TCP
	key := dataplane.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: dataplane.TCP}
	names := map[string]bool{}
	all := []string{
		poolKey{n, dataplane.Cluster}.chain(), poolKey{n, dataplane.Local}.chain(), poolKey{other, dataplane.Cluster}.chain(),
		sourcesChain(n, key), sourcesChain(other, key),
		bucketName(chainPortals, 255), bucketName(chainPortalsHost, 255),
		chainPortals, chainPortalsHost, chainNodePort, chainNodePortHost, chainGuard, chainReject,
	}
	for _, name := range all {
		if len(name) > 28 || names[name] || !ownsChain(netfilter.NAT, name) || ownsChain(netfilter.Mangle, name) {
			t.Errorf("chain %s is too long, doubled or not ours", name)
		}
		names[name] = true
	}
	for _, f := range dataplane.Families() {
		for _, s := range allSets() {
			if name := s.name(f); len(name) > 31 || names[name] || !ownsSet(f, name) {
				t.Errorf("set %s is too long, doubled or not ours", name)
			}
			names[s.name(f)] = true
		}
	}
	for _, name := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-FIREWALL", "KUBE-MARK-DROP", "KUBE-SVC-ABC", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} {
		if ownsAnywhere(name) {
			t.Errorf("chain %s is taken for ours", name)
		}
	}
}

// Equal snapshots give equal rules, whatever the maps in between do.
func TestBuildIsStable(t *testing.T) {
	at := ports()
	first := build(many(t, 300, false), dataplane.IPv4, at)
	second := build(many(t, 300, false), dataplane.IPv4, at)
	if p := makePlan(&second, confirmed(&first)); p.writes() != 0 {
		t.Errorf("the same snapshot again writes %d", p.writes())
	}
}
