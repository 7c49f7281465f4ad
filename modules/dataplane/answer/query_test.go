package answer

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

func TestFlow(t *testing.T) {
	node := &dataplane.Node{
		PrimaryIPs: []netip.Addr{netip.MustParseAddr("192.168.77.10")},
		Addresses:  []netip.Addr{netip.MustParseAddr("192.168.77.10")},
	}
	toward := func(a netip.Addr) (string, error) {
		if a.String() == "10.244.9.9" {
			return "", errors.New("no route")
		}
		return "eth0", nil
	}
	for _, test := range []struct {
		query Query
		want  string
	}{
		{Query{"", "", "10.96.0.10:80", ""}, "TCP 192.168.77.10:40000 -> 10.96.0.10:80 from the node"},
		{Query{"udp", "192.168.77.10:5", "10.96.0.10:80", ""}, "UDP 192.168.77.10:5 -> 10.96.0.10:80 from the node"},
		{Query{"UDP", "10.244.1.2", "10.96.0.10:53", "veth0"}, "UDP 10.244.1.2:40000 -> 10.96.0.10:53 from veth0"},
		{Query{"UDP", "10.244.1.2", "10.96.0.10:53", ""}, "UDP 10.244.1.2:40000 -> 10.96.0.10:53 from eth0"},
		{Query{"tcp", "fd00::2", "[fd00::1]:80", ""}, "TCP [fd00::2]:40000 -> [fd00::1]:80 from eth0"},
		{Query{"icmp", "10.244.1.2:7", "10.96.0.10", ""}, "ICMP 10.244.1.2:0 -> 10.96.0.10:0 from eth0"},
		{Query{"icmp", "", "::ffff:10.96.0.10", ""}, "ICMP 192.168.77.10:0 -> 10.96.0.10:0 from the node"},
		{Query{"", "", "", ""}, `error destination: "" is neither an address nor one with a port`},
		{Query{"", "", "10.96.0.10", ""}, "error destination: 10.96.0.10 has no port"},
		{Query{"", "", "web:80", ""}, `error destination: "web:80" is neither an address nor one with a port`},
		{Query{"", "client", "10.96.0.10:80", ""}, `error source: "client" is neither an address nor one with a port`},
		{Query{"gre", "", "10.96.0.10:80", ""}, `error unknown protocol "gre": want TCP, UDP, SCTP, ICMP or ICMPv6`},
		{Query{"", "", "10.96.0.10:80", "veth0"}, "error source: a flow that comes in by an interface needs one"},
		{Query{"", "", "[fd00::1]:80", ""}, "error source: the node has no IPv6 address: give one"},
		{Query{"", "fd00::1", "10.96.0.10:80", ""}, "error the source fd00::1 and the destination 10.96.0.10 are of different families"},
		{Query{"", "10.244.9.9", "10.96.0.10:80", ""}, "error by which interface 10.244.9.9 comes in is not known (no route): name it"},
	} {
		f, err := test.query.Flow(node, toward)
		have := f.String()
		if err != nil {
			have = "error " + err.Error()
		}
		if have != test.want {
			t.Errorf("%+v: %s, want %s", test.query, have, test.want)
		}
	}
}
