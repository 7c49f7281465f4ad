package answer

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// A question that can be read is about a flow that the oracle can decide.
func FuzzQuery(f *testing.F) {
	f.Add("tcp", "10.244.1.2:5000", "10.96.0.10:80", "eth0")
	f.Add("", "", "[fd00::1]:80", "")
	f.Add("icmpv6", "fe80::1%eth0", "::ffff:10.0.0.1", "")
	node := &dataplane.Node{PrimaryIPs: []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00:c0::1")}}
	b := dataplane.Empty().Edit()
	b.SetNode(node)
	s, err := b.Build()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, protocol, source, destination, iface string) {
		q := Query{protocol, source, destination, iface}
		flow, err := q.Flow(node, func(netip.Addr) (string, error) { return "", errors.New("unknown") })
		if err != nil {
			return
		}
		if !flow.Src.IsValid() || !flow.Dst.IsValid() || flow.Protocol.HasPorts() && flow.Dst.Port() == 0 {
			t.Errorf("%+v is read as %s", q, flow)
		}
		if v := s.Decide(flow); v.Reason == "" {
			t.Errorf("%s: %s", flow, v)
		}
	})
}
