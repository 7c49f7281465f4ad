package proxy

import (
	"net/netip"
	"testing"
)

const saved = `*filter
:INPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
-A INPUT -d 10.100.0.9/32 -j KUBE-FORWARD
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SEP-OLD - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.100.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SVC-A ! -s 10.244.0.0/16 -d 10.100.0.2/32 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -p tcp -j DNAT --to-destination 10.128.0.1:8080
-A KUBE-SVC-A -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j DNAT --to-destination 240.0.0.1
-A KUBE-SEP-OLD -p tcp -j DNAT --to-destination 10.128.0.9:8080
COMMIT
`

func TestAddRules(t *testing.T) {
	k := Kernel{Destinations: map[netip.AddrPort]bool{}}
	if err := k.addRules([]byte(saved)); err != nil {
		t.Fatal(err)
	}
	if want := (Objects{Rules: 7, Chains: 5}); k.Objects != want {
		t.Errorf("counted %+v, want %+v", k.Objects, want)
	}
	if len(k.Destinations) != 1 || !k.Destinations[netip.MustParseAddrPort("10.128.0.1:8080")] {
		t.Errorf("destinations are %v, want the one that a rule leads to", k.Destinations)
	}
	if want := netip.MustParseAddr("10.100.0.1"); len(k.Services) != 1 || k.Services[0] != want {
		t.Errorf("Services are %v, want %v: the one that nat dispatches to", k.Services, want)
	}
}

func TestAddServers(t *testing.T) {
	k := Kernel{Destinations: map[netip.AddrPort]bool{}}
	err := k.addServers([]byte(`IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A640001:0050 rr
  -> 0A800002:1F90      Masq    1      0          0
  -> 0A800001:1F90      Masq    1      0          0
  -> 0A800003:1F90      Masq    0      1          2
UDP  0A60000A:0035 rr
`))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Objects{VirtualServers: 2, RealServers: 3}); k.Objects != want {
		t.Errorf("counted %+v, want %+v", k.Objects, want)
	}
	if len(k.Destinations) != 2 || !k.Destinations[netip.MustParseAddrPort("10.128.0.1:8080")] || !k.Destinations[netip.MustParseAddrPort("10.128.0.2:8080")] {
		t.Errorf("destinations are %v", k.Destinations)
	}
}

func TestParseSetting(t *testing.T) {
	for _, name := range []string{"iptables-nft", "iptables-legacy", "ipvs"} {
		if s, err := ParseSetting(name); err != nil || s.String() != name {
			t.Errorf("%q is read as %v: %v", name, s, err)
		}
	}
	if _, err := ParseSetting("iptables"); err == nil {
		t.Error("iptables without a back end is accepted")
	}
}
