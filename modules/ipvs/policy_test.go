package ipvs

import (
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

const (
	outsider = "203.0.113.7:5000"
	podFlow  = "10.244.1.2:5000"
)

// pods is a node that tells pods by their range.
func pods(b *dataplane.Builder) {
	b.SetNode(&dataplane.Node{
		Name: "node", Mark: 1 << 14, DropInvalid: true,
		Detectors: []dataplane.Detector{{Family: dataplane.IPv4, Prefix: netip.MustParsePrefix("10.244.0.0/16")}},
	})
}

// keepsPods is a Service whose ClusterIP masquerades everybody but pods.
func keepsPods(i, endpoints int) *dataplane.ServicePort {
	sp := numbered(i, endpoints)
	sp.Frontends[0].Routes[dataplane.FromPod].Masquerade = dataplane.MasqueradeNo
	return sp
}

// walk follows a packet to the ClusterIP of Service 1.
func (m *memory) walk(t *testing.T, from string, mark uint32) []netfilter.Outcome {
	t.Helper()
	p := netfilter.PacketOf(dataplane.Flow{
		Src: netip.MustParseAddrPort(from), Dst: netip.MustParseAddrPort("10.96.0.1:80"),
		Protocol: dataplane.TCP, InInterface: "eth0",
	})
	p.Mark = mark
	return follow(t, m.walker(t), p)
}

// forward takes a packet of a flow through FORWARD.
func (m *memory) forward(t *testing.T, states netfilter.StateSet) netfilter.Verdict {
	t.Helper()
	w, err := netfilter.ReadWalker(t.Context(), m.rules)
	if err != nil {
		t.Fatal(err)
	}
	p := netfilter.Packet{
		Source: netip.MustParseAddrPort("10.128.1.0:8080"), Destination: netip.MustParseAddrPort(outsider),
		Protocol: dataplane.TCP, In: "veth1", States: states,
	}
	all, err := w.Through(p, netfilter.Hook{Table: netfilter.Filter, Chain: "FORWARD"})
	if err != nil {
		t.Fatal(err)
	}
	return all[0].Verdict
}

// What is masqueraded gets past a node's firewall, and so do the replies. Here
// that is INPUT, from which IPVS takes flows, and FORWARD for replies.
// Proves S3.11.
func TestFirewallPoliciesAreOpened(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	want := snapshot(t, dataplane.Empty(), func(b *dataplane.Builder) { pods(b); b.Put(keepsPods(1, 1)) })
	m.sync(t, want, false)
	closed := netfilter.Transaction{Table: netfilter.Filter}
	for _, chain := range []string{"INPUT", "FORWARD"} {
		closed.Insert = append(closed.Insert, netfilter.PlacedRule{Chain: chain, Rule: netfilter.Rule{Target: netfilter.Drop()}})
	}
	if err := m.rules.Restore(t.Context(), closed); err != nil {
		t.Fatal(err)
	}
	if o := m.walk(t, outsider, 0); o[0].Verdict != netfilter.Accepted || !o[0].Masqueraded() {
		t.Errorf("masqueraded: %+v", o)
	}
	if o := m.walk(t, podFlow, 0); o[0].Verdict != netfilter.Dropped {
		t.Errorf("the firewall has no effect: %+v", o)
	}
	if v := m.forward(t, netfilter.StateEstablished); v != netfilter.Accepted {
		t.Errorf("a reply: verdict %d", v)
	}
	if v := m.forward(t, netfilter.StateNew); v != netfilter.Dropped {
		t.Errorf("another new flow: verdict %d", v)
	}
	m.settled(t, want)
}

// kubernetes#19983: other bits of the mark are kept, and ours is cleared.
// Proves S3.12.
func TestOtherMarkBitsAreKept(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	m.sync(t, snapshot(t, dataplane.Empty(), func(b *dataplane.Builder) { pods(b); b.Put(keepsPods(1, 1)) }), false)
	for _, from := range []string{outsider, podFlow} {
		o := m.walk(t, from, 0xff)
		if o[0].Packet.Mark != 0xff || !o[0].Balanced || o[0].Masqueraded() != (from == outsider) {
			t.Errorf("from %s: mark %#x, %+v", from, o[0].Packet.Mark, o)
		}
	}
}

// kubernetes#74839, #94861: what conntrack calls invalid is not forwarded, if
// that is wished.
// Proves S3.13.
func TestInvalidIsNotForwarded(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	m.sync(t, snapshot(t, dataplane.Empty(), pods), false)
	if v := m.forward(t, netfilter.StateInvalid); v != netfilter.Dropped {
		t.Errorf("invalid: verdict %d", v)
	}
	liberal := snapshot(t, m.last, func(b *dataplane.Builder) { b.SetNode(&dataplane.Node{Mark: 1 << 14}) })
	m.sync(t, liberal, false)
	if v := m.forward(t, netfilter.StateInvalid); v != netfilter.Accepted {
		t.Errorf("invalid, and conntrack is liberal: verdict %d", v)
	}
	m.settled(t, liberal)
}

// kubernetes#59976: a node has no load balancer's address, so that it answers no
// ARP for it, and with strictARP none for ClusterIPs either.
func TestNoARPForServices(t *testing.T) {
	settings := kernel.Settings(kernel.SettingOptions{Release: kernel.Release{Major: 6, Minor: 1}, StrictARP: true})
	m := newMemory(dataplane.IPv4, Options{StrictARP: true})
	m.settings = settings
	sp := numbered(1, 1)
	balancer := *sp.Frontends[1]
	balancer.Kind, balancer.Addr = dataplane.LoadBalancerIP, netip.MustParseAddr("198.51.100.1")
	sp.Frontends = append(sp.Frontends, &balancer)
	m.sync(t, snapshot(t, dataplane.Empty(), with(sp)), false)
	if m.sysctls["net/ipv4/conf/all/arp_ignore"] != "1" || m.sysctls["net/ipv4/conf/all/arp_announce"] != "2" {
		t.Errorf("sysctls %v", m.sysctls)
	}
	locals, err := m.device.List(t.Context(), dataplane.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range locals {
		if a := l.Prefix.Addr(); l.Bound || a != netip.MustParseAddr("10.96.0.1") && !isAlias(a) {
			t.Errorf("the node has %s", l)
		}
	}
}
