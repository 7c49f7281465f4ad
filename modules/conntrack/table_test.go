package conntrack_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// TestDumpReadsWhatTheKernelHolds, and nothing but UDP of one family.
func TestDumpReadsWhatTheKernelHolds(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1 := l.ep(l.Endpoints[0])
		l.Endpoints[0].Serve(t, rig.TCP, serverPort)
		l.rules(translations{l.vip(): e1})
		c := l.dial(l.Client, l.vip())
		c.reaches("e1")
		for _, like := range []netip.Addr{vip4.Addr(), vip6.Addr()} {
			to := netip.AddrPortFrom(l.Endpoints[0].Addr(like), serverPort)
			for _, proto := range []rig.Protocol{rig.TCP, rig.UDP} {
				if r := (rig.Probe{From: l.Client, Proto: proto, To: to}).Send(t.Context()); r.Outcome != rig.Answered {
					t.Fatalf("%s to %s: %s", proto, to, r)
				}
			}
		}
		client := netip.MustParseAddrPort(c.LocalAddr().String())
		e, ok := c.entry()
		want := conntrack.Entry{
			Protocol: dataplane.UDP, ID: e.ID,
			Orig:  conntrack.Tuple{Src: client, Dst: l.vip()},
			Reply: conntrack.Tuple{Src: e1, Dst: client},
		}
		if !ok || e != want || e.ID == 0 {
			t.Errorf("read %+v, want %+v", e, want)
		}
		if all := l.list(); len(all) != 2 {
			t.Errorf("read %v, want one translated and one direct flow", all)
		}
	})
}

// TestDeleteIsExact: an entry that was read and is no longer there is not
// mistaken for the one that took its place.
func TestDeleteIsExact(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		l.rules(translations{l.vip(): e1})
		c := l.dial(l.Client, l.vip())
		c.reaches("e1")
		first, _ := c.entry()
		for i, want := range []int{1, 0} {
			if n, err := (inHost{l.Node}).Delete(t.Context(), []conntrack.Entry{first}); n != want || err != nil {
				t.Errorf("delete number %d: %d, %v; want %d", i, n, err, want)
			}
		}
		l.rules(translations{l.vip(): e2})
		c.reaches("e2")
		c.survives(func() {
			if n, err := (inHost{l.Node}).Delete(t.Context(), []conntrack.Entry{first}); n != 0 || err != nil {
				t.Errorf("the successor of a deleted entry: %d, %v", n, err)
			}
		})
	})
}

// TestZones: an entry in a zone is deleted there if it is stale, and one that
// was never translated there is left to who assigned the zone.
func TestZones(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		l.nft(`table inet zones {
			chain both { type filter hook prerouting priority raw; udp dport 53 ct zone set 7; udp sport 5353 ct zone set 7; }
		}`)
		direct := l.dial(l.Client, l.ext())
		direct.reaches(silent)
		l.rules(translations{l.vip(): e1})
		c := l.dial(l.Client, l.vip())
		c.reaches("e1")
		if e, _ := c.entry(); e.Zone != 7 {
			t.Fatalf("the entry is in zone %d", e.Zone)
		}
		l.rules(translations{l.vip(): e2})
		direct.survives(func() {
			l.sync(service{name: "s", clusterIP: l.vip(), extra: l.ext(), serving: []netip.AddrPort{e2}, usable: []netip.AddrPort{e2}})
		})
		c.reaches("e2")
	})
}

// TestZoneOfOneDirection: such a zone is part of the original tuple alone.
func TestZoneOfOneDirection(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		l.nft(`table inet zones {
			chain original { type filter hook prerouting priority raw; udp dport 53 ct original zone set 9; }
		}`)
		l.rules(translations{l.vip(): e1})
		c := l.dial(l.Client, l.vip())
		c.reaches("e1")
		if e, _ := c.entry(); e.Zone != 9 {
			t.Fatalf("the entry is in zone %d", e.Zone)
		}
		l.rules(translations{l.vip(): e2})
		l.sync(service{name: "s", clusterIP: l.vip(), serving: []netip.AddrPort{e2}, usable: []netip.AddrPort{e2}})
		c.reaches("e2")
	})
}

// TestMasqueradedFlows: what the source becomes plays no part.
func TestMasqueradedFlows(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		l.nft(`table inet masq {
			chain nat { type nat hook postrouting priority srcnat; udp dport 5353 masquerade; }
		}`)
		l.rules(translations{l.nodePort(): e1})
		svc := service{name: "s", nodePort: nodePort, serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}}
		c := l.dial(l.Up, l.nodePort())
		c.reaches("e1")
		c.survives(func() { l.sync(svc) })
		l.rules(translations{l.nodePort(): e2})
		svc.serving, svc.usable = []netip.AddrPort{e2}, []netip.AddrPort{e2}
		l.sync(svc)
		c.reaches("e2")
	})
}

// TestHostNetworkEndpoint: the endpoint is the node, whose NodePort is another.
func TestHostNetworkEndpoint(t *testing.T) {
	eachFamily(t, func(l *lab) {
		l.Node.Serve(t, rig.UDP, serverPort)
		host := l.ep(l.Node)
		l.rules(translations{l.vip(): host})
		svc := service{name: "s", clusterIP: l.vip(), nodePort: nodePort, serving: []netip.AddrPort{host}, usable: []netip.AddrPort{host}}
		c, direct := l.dial(l.Client, l.vip()), l.dial(l.Client, host)
		c.reaches("node")
		direct.reaches("node")
		c.survives(func() { direct.survives(func() { l.sync(svc) }) })
		direct.survives(func() { l.sync() })
		c.gone()
	})
}

// TestManyFlows: more than one batch, and more than one part of a dump.
func TestManyFlows(t *testing.T) {
	eachFamily(t, func(l *lab) {
		const flows = 5000
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		client := l.Client.Addr(l.vip().Addr())
		for i := range flows {
			ep := e1
			if i%2 == 1 {
				ep = e2
			}
			l.create(netip.AddrPortFrom(client, uint16(10000+i)), l.vip(), ep)
		}
		p := l.sync(service{name: "s", clusterIP: l.vip(), serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}})
		if p.Seen < flows || p.Stale != flows/2 || p.Deleted != flows/2 {
			t.Errorf("pass %+v", p)
		}
		left := l.list()
		if len(left) != flows/2 || slices.ContainsFunc(left, func(e conntrack.Entry) bool { return e.Reply.Src != e1 }) {
			t.Errorf("%d flows are left", len(left))
		}
	})
}

// create makes an entry out of nothing.
func (l *lab) create(client, dst, ep netip.AddrPort) {
	l.t.Helper()
	family := netlink.InetFamily(netlink.FAMILY_V4)
	if l.family == dataplane.IPv6 {
		family = netlink.FAMILY_V6
	}
	f := &netlink.ConntrackFlow{
		FamilyType: uint8(family),
		Forward:    tuple(client, dst),
		Reverse:    tuple(ep, client),
		TimeOut:    600,
	}
	if err := l.Node.Do(func() error { return netlink.ConntrackCreate(netlink.ConntrackTable, family, f) }); err != nil {
		l.t.Fatal(err)
	}
}

func tuple(src, dst netip.AddrPort) netlink.IPTuple {
	return netlink.IPTuple{
		Protocol: uint8(dataplane.UDP),
		SrcIP:    src.Addr().AsSlice(), SrcPort: src.Port(),
		DstIP: dst.Addr().AsSlice(), DstPort: dst.Port(),
	}
}

func TestErrorsNameTheWork(t *testing.T) {
	l := newLab(t, dataplane.IPv4)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (inHost{l.Node}).Dump(ctx, l.family, func(conntrack.Entry) bool { return true }); err == nil {
		t.Error("a dump that was told to stop says nothing")
	}
	bad := conntrack.Entry{Protocol: dataplane.UDP} // the kernel refuses it
	c := l.dial(l.Client, l.vip())
	c.reaches(silent)
	good, _ := c.entry()
	n, err := inHost{l.Node}.Delete(t.Context(), []conntrack.Entry{bad, good})
	if n != 1 || err == nil {
		t.Errorf("a good and a bad one: %d, %v", n, err)
	}
}
