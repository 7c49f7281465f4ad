package userspace

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter/program"
)

// A new process listens where the rules lead already: what was redirected to the
// old one is served as soon as it listens, and nothing is written.
// Proves S7.2.
func TestRestartTakesThePortsAgain(t *testing.T) {
	onSites(t, func(s *site) {
		web := s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0]))
		dns := s.service("dns", dataplane.UDP, s.vip(2), s.at(s.Endpoints[0]))
		want := s.snapshot(dataplane.Empty(), web, dns)
		s.sync(want, false)
		before := s.rules()
		s.close()
		if got := s.ask(s.Client, netip.AddrPortFrom(s.vip(1), 80)); got.Outcome != rig.Refused {
			s.Errorf("without a process a client is %s, want refused", got)
		}
		s.open()
		if r := s.sync(s.snapshot(want, web), false); len(r.Removed) != 1 || r.Removed[0].Addr != s.vip(2) || !r.Full {
			s.Errorf("a restart reports %+v, want the removal of %s", r, s.vip(2))
		}
		s.close()
		s.open()
		s.sync(want, false)
		s.answers(s.Client, s.vip(1), "e1")
		line := func(rules string) string {
			for l := range strings.Lines(rules) {
				if strings.Contains(l, "default/web") && strings.Contains(l, "DNAT") {
					return l
				}
			}
			return "none"
		}
		if was, is := line(before), line(s.rules()); was != is {
			s.Errorf("a restart changes the rule\n%sto\n%s", was, is)
		}
	})
}

// Nobody reaches a listener but through a rule, which source ranges and policy
// stand in front of; and a firewall that lets nothing in does not stop Services.
// Proves S3.11.
func TestListenersAreGuarded(t *testing.T) {
	onSites(t, func(s *site) {
		s.sync(s.snapshot(dataplane.Empty(), s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0]))), false)
		at := s.listener()
		if at.Addr() != s.addr(s.Node) {
			s.Errorf("listens at %s, want only %s", at, s.addr(s.Node))
		}
		for _, from := range []*rig.Host{s.Client, s.Up, s.Node} {
			if got := s.ask(from, at); got.Outcome != rig.Refused {
				s.Errorf("%s asks the listener itself and is %s, want refused", from.Name, got)
			}
		}
		s.iptables("-P", "INPUT", "DROP")
		s.iptables("-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT")
		s.iptables("-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
		s.answers(s.Client, s.vip(1), "e1")
		s.answers(s.Up, s.vip(1), "e1")
		s.answers(s.Node, s.vip(1), "e1")
	})
}

// kubernetes#15527: the port is free in the Sync that removes the Service, and
// an endpoint's change writes no rule.
func TestOnlyWhatChangedIsWritten(t *testing.T) {
	onSites(t, func(s *site) {
		other := s.service("other", dataplane.TCP, s.vip(2))
		want := s.snapshot(dataplane.Empty(), s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0])), other)
		s.sync(want, false)
		before, at := s.rules(), s.listener()
		if !s.plane.Relays(dataplane.TCP, at) {
			s.Errorf("the plane does not know that it relays what comes to %s", at)
		}
		want = s.snapshot(want, s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[1])), other)
		if r := s.sync(want, false); r.Writes != 1 {
			s.Errorf("an endpoint's change writes %d, want the listener's route alone", r.Writes)
		}
		s.answers(s.Client, s.vip(1), "e2")
		if after := s.rules(); after != before {
			s.Errorf("an endpoint's change rewrites rules:\n%s\nto\n%s", before, after)
		}
		want = s.snapshot(want, other)
		if r := s.sync(want, false); len(r.Removed) != 1 {
			s.Errorf("removed %v, want the frontend of web", r.Removed)
		}
		stranger, err := s.Node.Listen(t.Context(), at.String())
		if err != nil {
			s.Fatalf("the port is not free: %v", err)
		}
		stranger.Close()
	})
}

// A Service whose endpoint is its own address would be relayed to itself until
// no file is left.
func TestNoLoops(t *testing.T) {
	onSites(t, func(s *site) {
		vip := netip.AddrPortFrom(s.vip(1), 80)
		s.sync(s.snapshot(dataplane.Empty(), s.service("loop", dataplane.TCP, s.vip(1), vip)), false)
		if got := s.ask(s.Client, vip); !errors.Is(got.Err, syscall.ECONNRESET) {
			s.Errorf("the client is %s, want a reset", got)
		}
	})
}

// What cannot be relayed is reported and refused, and does not stop the others.
// Proves S9.2, kubernetes#36652.
func TestSCTPIsIsolated(t *testing.T) {
	onSites(t, func(s *site) {
		s.sync(s.snapshot(dataplane.Empty()), false)
		r := s.sync(s.snapshot(dataplane.Empty(),
			s.service("stream", dataplane.SCTP, s.vip(1), s.at(s.Endpoints[0])),
			s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0]))), false)
		if len(r.Failed) != 1 || r.Failed[0].Name.Name != "stream" || !errors.Is(r.Failed[0].Err, errors.ErrUnsupported) || r.Again != s.now.Add(program.RetryAfter) {
			s.Errorf("the report is %+v, want that stream failed", r)
		}
		s.answers(s.Client, s.vip(1), "e1")
	})
}

// kubernetes#19983: the bits of others are on a packet when it comes to the relay,
// and on what the relay sends there is our bit alone.
// Proves S3.12.
func TestOtherMarkBitsAreKept(t *testing.T) {
	onSites(t, func(s *site) {
		if _, err := s.Node.RunInput(t.Context(), `table inet observer {
	counter kept { }
	counter lost { }
	counter ours { }
	counter foreign { }
	chain before {
		type filter hook prerouting priority -200
		iifname "eth0" meta mark set 0xff
	}
	chain after {
		type filter hook input priority 300
		iifname "eth0" ct state new meta l4proto tcp meta mark 0xff counter name kept
		iifname "eth0" ct state new meta l4proto tcp meta mark != 0xff counter name lost
	}
	chain sent {
		type filter hook postrouting priority 300
		ct state new meta l4proto tcp meta mark 0x4000 counter name ours
		ct state new meta l4proto tcp meta mark & 0xffffbfff != 0 counter name foreign
	}
}`, "nft", "-f", "-"); err != nil {
			s.Fatal(err)
		}
		s.sync(s.snapshot(dataplane.Empty(), s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0]))), false)
		s.answers(s.Up, s.vip(1), "e1")
		for name, none := range map[string]bool{"kept": false, "lost": true, "ours": false, "foreign": true} {
			out, err := s.Node.Run(t.Context(), "nft", "list", "counter", "inet", "observer", name)
			if err != nil || strings.Contains(out, "packets 0 ") != none {
				s.Errorf("packets with marks, %s: %s, %v", name, out, err)
			}
		}
	})
}

// The node's address may change: the listeners move, and rules with them.
func TestListenersFollowTheNode(t *testing.T) {
	onSites(t, func(s *site) {
		want := s.snapshot(dataplane.Empty(), s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0])))
		s.sync(want, false)
		old := s.listener()
		alias := rig.Alias4
		if s.family == dataplane.IPv6 {
			alias = rig.Alias6
		}
		b := want.Edit()
		b.SetNode(s.node(alias))
		want, err := b.Build()
		if err != nil {
			s.Fatal(err)
		}
		s.sync(want, false)
		if at := s.listener(); at.Addr() != alias {
			s.Errorf("listens at %s, want %s", at, alias)
		}
		s.answers(s.Client, s.vip(1), "e1")
		stranger, err := s.Node.Listen(t.Context(), old.String())
		if err != nil {
			s.Fatalf("the old port is not free: %v", err)
		}
		stranger.Close()
	})
}

// Names come from users; whatever is in them, the tools must take it.
func TestHostileNames(t *testing.T) {
	onSites(t, func(s *site) {
		var sps []*dataplane.ServicePort
		for i, name := range []string{
			`quo"te`, `apo'strophe`, `back\slash`, "new\nline", "-j ACCEPT", "$(reboot)", "ünïcödé", "\xff\xfe", strings.Repeat("x", 300), "",
		} {
			sp := s.service(name, dataplane.TCP, s.vip(byte(i+1)), s.at(s.Endpoints[0]))
			sp.Name.Port = name
			sps = append(sps, sp)
		}
		want := s.snapshot(dataplane.Empty(), sps...)
		s.sync(want, false)
		if r := s.sync(want, true); r.Writes != 0 || len(r.Repaired) != 0 {
			s.Errorf("a second Sync writes %d and repairs %v", r.Writes, r.Repaired)
		}
		s.answers(s.Client, s.vip(3), "e1")
	})
}

// Another mode that works at addresses of the node, as IPVS does, may be there before
// nat redirects or when it no longer does: filter lets pass what that one serves, and
// refuses what is nobody's.
// Proves S7.9.
func TestServedClusterIPsPassWithoutRedirect(t *testing.T) {
	onSites(t, func(s *site) {
		s.sync(s.snapshot(dataplane.Empty(),
			s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0])), s.service("empty", dataplane.TCP, s.vip(2))), false)
		s.Node.Serve(s.TB, rig.TCP, 80)
		s.iptables("-t", "nat", "-F", "PREROUTING")
		for n := range byte(2) {
			vip := s.vip(n + 1)
			if got := s.ask(s.Client, netip.AddrPortFrom(vip, 80)); got.Outcome != rig.Refused {
				s.Errorf("at nobody's %s a client is %s", vip, got)
			}
			if err := s.Node.AddAddr("lo", netip.PrefixFrom(vip, vip.BitLen())); err != nil {
				s.Fatal(err)
			}
		}
		s.answers(s.Client, s.vip(1), s.Node.Name)
		if got := s.ask(s.Client, netip.AddrPortFrom(s.vip(2), 80)); got.Outcome != rig.Refused {
			s.Errorf("at the node's %s, whose Service has no endpoint, a client is %s", s.vip(2), got)
		}
	})
}
