package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Proves S7.2, S9.6.
func TestRestartWritesNothing(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		sticky := clusterIP("sticky", s.vip(2).String(), s.endpoints(s.Endpoints...))
		sticky.Affinity = time.Hour
		want := snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints[0], s.Remote)), sticky)
		s.sync(want, false)
		bound := s.ask(s.Client, s.vip(2)).Server
		before := s.dump()
		s.open()
		if r := s.sync(want, false); r.Writes != 0 || !r.Full || len(r.Removed) != 0 {
			s.Errorf("a restart gives %+v", r)
		}
		if after := s.dump(); after != before {
			s.Errorf("a restart changes\n%s\nto\n%s", before, after)
		}
		for range 5 {
			if got := s.ask(s.Client, s.vip(2)); got.Server != bound {
				s.Errorf("after a restart the client of %s gets %s", bound, got)
			}
		}
	})
}

// kubernetes#14870: an existence check that disagrees with how rules are
// printed lets them grow for ever.
func TestHundredSyncsDoNotGrow(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		want := snapshotOf(s.T, loadBalancer(s.T, endpoints("10.244.2.11:8080"), endpoints("10.244.1.11:8080"), true))
		s.sync(want, false)
		before := s.dump()
		for i := range 100 {
			if r := s.sync(want, i%10 == 0); r.Writes != 0 {
				s.Fatalf("sync %d writes %d", i, r.Writes)
			}
		}
		if after := s.dump(); after != before {
			s.Errorf("100 syncs change\n%s\nto\n%s", before, after)
		}
	})
}

// kubernetes#81517, #129128: what others flush or delete comes back, in each
// table, and the report says what it was.
// Proves S9.4.
func TestDamageIsRepaired(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		want := snapshotOf(s.T,
			clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints...)), clusterIP("none", s.vip(2).String(), nil))
		s.sync(want, false)
		intact := s.dump()
		chain := poolChain(tcp("web"), dataplane.Cluster)
		for _, c := range []struct {
			name    string
			damage  func()
			object  string
			service string // that the report names
		}{
			{"nat flushed", func() { s.iptables("-t", "nat", "-F") }, "nat chain " + chain, "web"},
			{"filter flushed", func() { s.iptables("-F") }, "filter chain KUBE-SERVICES", ""},
			{"one chain flushed", func() { s.iptables("-t", "nat", "-F", chain) }, "nat chain " + chain, "web"},
			{
				"one jump deleted", func() { s.iptables("-t", "nat", "-D", "PREROUTING", "1") },
				"nat chain PREROUTING, our jumps in front", "",
			},
			{"a rule added to a chain of ours", func() {
				s.iptables("-t", "nat", "-I", chain, "-p", "tcp", "--dport", "9", "-j", "RETURN")
			}, "nat chain " + chain, "web"},
			{
				"a jump doubled", func() { s.iptables("-A", "FORWARD", "-j", "KUBE-FORWARD") },
				"filter chain FORWARD, our jumps in front", "",
			},
			{
				"a set flushed", func() { s.run("ipset", "flush", setReject.name(s.family)) },
				"ipset " + setReject.name(s.family), "none",
			},
			{"an entry added", func() {
				s.run("ipset", "add", setClusterIP.name(s.family), s.pick("192.0.2.1", "fd00:1::1").String())
			}, "ipset " + setClusterIP.name(s.family), ""},
			{
				"a chain of ours that nobody needs", func() { s.iptables("-t", "nat", "-N", "KUBE-SVC-AAAAAAAAAAAAAAAA") },
				"nat chain KUBE-SVC-AAAAAAAAAAAAAAAA", "",
			},
		} {
			c.damage()
			if r := s.sync(want, false); r.Writes != 0 {
				s.Errorf("%s: a Sync on trust writes", c.name)
			}
			r := s.sync(want, true)
			if !slices.ContainsFunc(r.Repaired, func(d dataplane.Difference) bool {
				return d.Object == c.object && d.ServicePort.Name == c.service
			}) {
				s.Errorf("%s: repaired %v, which does not name %q of %q", c.name, r.Repaired, c.object, c.service)
			}
			if now := s.dump(); now != intact {
				s.Errorf("%s: not repaired:\n%s\nwant\n%s", c.name, now, intact)
			}
		}
		s.answers(s.Client, s.vip(1), s.addr(s.Client), s.Endpoints...)
		s.refuses(s.Client, s.vip(2))
	})
}

// CVE-2019-9946: a host port of a pod must not take a Service's flows.
func TestJumpsComeFirst(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		stolen := netip.AddrPortFrom(s.addr(s.Remote), 8080)
		steal := fmt.Sprintf(`*nat
:CNI-HOSTPORT-DNAT - [0:0]
-I PREROUTING 1 -j CNI-HOSTPORT-DNAT
-I OUTPUT 1 -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp --dport 80 -j DNAT --to-destination %s
COMMIT
`, stolen)
		want := snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints...)))
		s.restore(steal)
		s.sync(want, false)
		s.answers(s.Client, s.vip(1), s.addr(s.Client), s.Endpoints...)
		s.iptables("-t", "nat", "-I", "PREROUTING", "1", "-j", "CNI-HOSTPORT-DNAT")
		s.sync(want, true)
		s.answers(s.Client, s.vip(1), s.addr(s.Client), s.Endpoints...)
		s.settled(want)

		// Calico puts itself first again and again; it takes no Service's flows.
		s.iptables("-t", "nat", "-N", "cali-PREROUTING")
		s.iptables("-t", "nat", "-I", "PREROUTING", "1", "-j", "cali-PREROUTING")
		if r := s.sync(want, true); r.Writes != 0 {
			s.Errorf("fights with Calico for the first place: %d writes", r.Writes)
		}
	})
}

// kubernetes#19983: other bits of the mark are kept, and ours is cleared.
// Proves S3.12.
func TestOtherMarkBitsAreKept(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		_, err := s.Node.RunInput(s.Context(), `table inet observer {
	counter kept { }
	counter leaked { }
	chain before {
		type filter hook prerouting priority -200
		meta mark set 0xff
	}
	chain after {
		type filter hook postrouting priority 300
		ct state new meta mark 0xff counter name kept
		meta mark & 0x4000 == 0x4000 counter name leaked
	}
}`, "nft", "-f", "-")
		if err != nil {
			s.Fatal(err)
		}
		s.sync(snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints[0]))), false)
		s.answers(s.Up, s.vip(1), s.addr(s.Node), s.Endpoints[0])
		if out := s.run("nft", "list", "counter", "inet", "observer", "kept"); strings.Contains(out, "packets 0 ") {
			s.Errorf("no packet left with the mark 0xff:\n%s", out)
		}
		if out := s.run("nft", "list", "counter", "inet", "observer", "leaked"); !strings.Contains(out, "packets 0 ") {
			s.Errorf("packets left with our mark:\n%s", out)
		}
	})
}

// Masqueraded flows pass a FORWARD chain whose policy is DROP, an endpoint's to
// itself too, and healthCheckNodePorts an INPUT chain like that.
// Proves S3.11, S8.3.
func TestFirewallPoliciesAreOpened(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		s.Node.Serve(s.T, rig.TCP, 32000)
		b := snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints[0]))).Edit()
		b.PutHealthCheck(dataplane.ServiceName{Namespace: "default", Name: "web"}, dataplane.HealthCheck{Port: 32000})
		want := built(s.T, b)
		s.sync(want, false)
		s.iptables("-P", "FORWARD", "DROP")
		s.iptables("-P", "INPUT", "DROP")
		s.iptables("-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT")
		s.answers(s.Up, s.vip(1), s.addr(s.Node), s.Endpoints[0])
		s.answers(s.Endpoints[0], s.vip(1), s.addr(s.Node), s.Endpoints[0])
		s.answers(s.Up, netip.AddrPortFrom(s.addr(s.Node), 32000), s.addr(s.Up), s.Node)
		if got := s.ask(s.Client, netip.AddrPortFrom(s.addr(s.Endpoints[0]), 8080)); got.Outcome != rig.Silent {
			s.Errorf("the policy of FORWARD has no effect: %s", got)
		}
		s.settled(want)
	})
}

// Names come from users; whatever is in them, the tools must take it.
func TestHostileNames(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		var sps []*dataplane.ServicePort
		for i, name := range []string{
			`quo"te`, `apo'strophe`, `back\slash`, "new\nline", "tab\t", "-j ACCEPT", "$(reboot)", "ünïcödé", "\xff\xfe",
			strings.Repeat("x", 300), "",
		} {
			sp := clusterIP(name, s.vip(byte(i+1)).String(), s.endpoints(s.Endpoints[0]))
			sp.Name.Port = name
			sps = append(sps, sp)
		}
		want := snapshotOf(s.T, sps...)
		s.sync(want, false)
		s.settled(want)
		s.answers(s.Client, s.vip(1), s.addr(s.Client), s.Endpoints[0])
	})
}

// The kernel takes SCTP rules although nothing here speaks it, and all shapes
// of all protocols at once.
func TestEveryProtocolLoads(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		var sps []*dataplane.ServicePort
		for i, p := range protocols() {
			sp := clusterIP("every", s.vip(1).String(), s.endpoints(s.Endpoints...))
			sp.Name.Port, sp.Name.Protocol, sp.Affinity = p.String(), p, time.Hour
			routes := externalRoutes(sp.Pools[0])
			lb := addFrontend(sp, dataplane.LoadBalancerIP, s.vip(2), routes)
			lb.Sources = &dataplane.SourceRanges{Prefixes: []netip.Prefix{netip.PrefixFrom(s.vip(3).Addr(), 24)}, Node: true}
			addFrontend(sp, dataplane.NodePort, netip.AddrPortFrom(s.family.Unspecified(), 30080), routes)
			none := clusterIP("none", s.vip(byte(10+i)).String(), nil)
			none.Name.Protocol = p
			addFrontend(none, dataplane.NodePort, netip.AddrPortFrom(s.family.Unspecified(), 30081), none.Frontends[0].Routes)
			sps = append(sps, sp, none)
		}
		want := snapshotOf(s.T, sps...)
		s.sync(want, false)
		s.settled(want)
	})
}
