package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// Operators look for the names that kube-proxy gives.
func TestNamesAreThoseOfKubeProxy(t *testing.T) {
	n := dataplane.ServicePortName{Namespace: "ns1", Name: "svc1", Port: "p80", Protocol: dataplane.TCP}
	if got, want := poolChain(n, dataplane.Cluster), "KUBE-SVC-XPGD46QRK7WJZT7O"; got != want {
		t.Errorf("the pool of %s is %s, want %s", n, got, want)
	}
	ep := netip.MustParseAddrPort("10.180.0.1:80")
	if got, want := endpointChain(n, dataplane.Cluster, ep), "KUBE-SEP-SXIVWICOYRO3J4NJ"; got != want {
		t.Errorf("the endpoint %s of %s is %s, want %s", ep, n, got, want)
	}
}

// kubernetes#3760: names that differ only in where the separators fall.
func TestNamesAreUnique(t *testing.T) {
	seen := make(map[string]string)
	check := func(name, key string) {
		t.Helper()
		if other, taken := seen[name]; taken && other != key {
			t.Fatalf("%s and %s have the same name %s", key, other, name)
		}
		seen[name] = key
	}
	protocols := []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP}
	words := []string{"a", "b", "a-b", "b-c", "tcp", "udp", "ctp", "s", "svc-tcp", "1"}
	for _, ns := range words {
		for _, name := range words {
			for _, port := range append(words, "") {
				for _, p := range protocols {
					n := dataplane.ServicePortName{Namespace: ns, Name: name, Port: port, Protocol: p}
					for i := range 3 {
						check(numbered(kindExternal, n, i), fmt.Sprint(n, i))
					}
				}
			}
		}
	}
	for i := range 100_000 {
		check(poolChain(tcp(fmt.Sprint("service-", i)), dataplane.Cluster), fmt.Sprint(i))
	}
}

func TestNamesFitTheKernel(t *testing.T) {
	n := dataplane.ServicePortName{
		Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 63), Protocol: dataplane.SCTP,
	}
	ep := netip.MustParseAddrPort("[fd00:1111:2222:3333:4444:5555:6666:7777]:65535")
	chains := []string{
		groupChain(poolChain(n, dataplane.Local), 255), endpointChain(n, dataplane.Local, ep),
		numbered(kindFirewall, n, 1000), program.AddrBucket(chainFirewall, ep.Addr()),
		program.PortBucket(chainNodePorts, dataplane.SCTP, 65535),
	}
	for _, id := range roots() {
		chains = append(chains, id.Name)
	}
	for _, name := range chains {
		if len(name) > 28 {
			t.Errorf("chain %s has %d bytes, the kernel takes 28", name, len(name))
		}
	}
	for _, f := range dataplane.Families() {
		sets := []string{affinitySet(n, dataplane.Local, ep)}
		for _, s := range sharedSets() {
			sets = append(sets, s.name(f))
		}
		for _, name := range sets {
			if len(name) > 31 {
				t.Errorf("ipset %s has %d bytes, the kernel takes 31", name, len(name))
			}
		}
	}
}

func TestFamiliesShareNoSet(t *testing.T) {
	for _, s := range sharedSets() {
		if name := s.name(dataplane.IPv6); ownsSet(dataplane.IPv4, name) || !ownsSet(dataplane.IPv6, name) {
			t.Errorf("ipset %s is not that of IPv6 alone", name)
		}
		if name := s.name(dataplane.IPv4); ownsSet(dataplane.IPv6, name) || !ownsSet(dataplane.IPv4, name) {
			t.Errorf("ipset %s is not that of IPv4 alone", name)
		}
	}
}

func TestForeignChainsAreNotOurs(t *testing.T) {
	foreign := []string{
		"KUBE-FIREWALL", "KUBE-MARK-DROP", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "OTHER-KUBE-SVC-X",
		"KUBE-PORTALS-HOST", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "CNI-HOSTPORT-DNAT", "DOCKER", "kube-services", "",
	}
	for _, name := range foreign {
		for _, table := range netfilter.Tables() {
			if ownsChain(table, name) {
				t.Errorf("%s in %s counts as ours", name, table)
			}
		}
	}
	for _, id := range roots() {
		if !ownsChain(id.Table, id.Name) {
			t.Errorf("%s does not count as ours", id)
		}
	}
}
