package netfilter

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// ipvsRules mark flows to a virtual server, give an external address another
// one that has a server, and masquerade what is marked.
const ipvsRules = `*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A PREROUTING -d 198.51.100.1/32 -p tcp -j NETMAP --to 240.0.0.0/5
-A PREROUTING -d 10.96.0.1/32 -i eth0 -j MARK --set-xmark 0x1/0x1
-A OUTPUT -d 10.96.0.1/32 -j MARK --set-xmark 0x1/0x1
-A OUTPUT -d 198.51.100.1/32 -p tcp -j NETMAP --to 240.0.0.0/5
-A POSTROUTING -m mark --mark 0x1/0x1 -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -d 10.96.0.1/32 -p tcp -m tcp --dport 81 -j DROP
-A OUTPUT -d 10.96.0.1/32 -j DROP
-A OUTPUT -d 10.1.0.3/32 -j REJECT --reject-with icmp-port-unreachable
COMMIT
`

// IPVS sees packets behind the filter table of INPUT and before that of OUTPUT,
// and what it sends passes OUTPUT once more and never FORWARD.
func TestFollowThroughIPVS(t *testing.T) {
	rules, err := ReadRuleset(strings.NewReader(ipvsRules))
	if err != nil {
		t.Fatal(err)
	}
	to := func(ap string, share float64) Choice { return Choice{To: netip.MustParseAddrPort(ap), Share: share} }
	servers := map[string]Balanced{
		"10.96.0.1:80":    {Place: "A", Choices: []Choice{to("10.1.0.1:8080", 0.75), to("192.0.2.1:8080", 0.25)}},
		"10.96.0.1:81":    {Place: "B", Choices: []Choice{to("10.1.0.1:8080", 1)}},
		"10.96.0.1:82":    {Place: "C"},
		"10.96.0.1:83":    {Place: "D", Choices: []Choice{to("10.1.0.3:8080", 1)}},
		"246.51.100.1:80": {Place: "E", Choices: []Choice{to("10.1.0.2:8080", 1)}},
	}
	w := &Walker{
		Rules: rules,
		IsLocal: func(a netip.Addr) bool {
			return a.String() == "192.0.2.1" || a.String() == "10.96.0.1" || a.String() == "246.51.100.1"
		},
		Balance: func(p Packet) (Balanced, bool) {
			b, ok := servers[p.Destination.String()]
			return b, ok
		},
	}
	const far, node = "203.0.113.1:5000", "192.0.2.1:5000"
	for _, row := range []struct {
		from, to, in, want string
	}{
		{far, "10.96.0.1:80", "eth0", "forward 192.0.2.1:8080 local 0.25\nforward 10.1.0.1:8080 masqueraded 0.75\n"},
		{node, "10.96.0.1:80", "", "forward 192.0.2.1:8080 masqueraded local 0.25\nforward 10.1.0.1:8080 masqueraded 0.75\n"},
		{far, "10.96.0.1:81", "eth0", "drop 10.96.0.1:81 local 1.00\n"},
		{node, "10.96.0.1:81", "", "forward 10.1.0.1:8080 masqueraded 1.00\n"},
		{far, "10.96.0.1:82", "eth0", "reject 10.96.0.1:82 local 1.00\n"},
		{far, "10.96.0.1:83", "eth0", "reject 10.1.0.3:8080 1.00\n"},
		{far, "10.96.0.1:84", "eth0", "not ours 10.96.0.1:84 local 1.00\n"},
		{node, "10.96.0.1:84", "", "drop 10.96.0.1:84 local 1.00\n"},
		{far, "198.51.100.1:80", "eth0", "forward 10.1.0.2:8080 1.00\n"},
		{node, "198.51.100.1:80", "", "forward 10.1.0.2:8080 1.00\n"},
	} {
		got := ends(follow(t, w, packet(dataplane.TCP, row.from, row.to, row.in)))
		if got != row.want {
			t.Errorf("%s -> %s from %q:\n%swant\n%s", row.from, row.to, row.in, got, row.want)
		}
	}
}
