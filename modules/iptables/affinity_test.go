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

// stickyPort is a Service with affinity and a ClusterIP for everybody.
func (s *site) stickyPort(timeout time.Duration, hosts ...*rig.Host) *dataplane.ServicePort {
	sp := clusterIP("sticky", s.vip(7).String(), s.endpoints(hosts...))
	sp.Affinity = timeout
	return sp
}

// clients gives the outside host more addresses and returns them.
func (s *site) clients(n int) []netip.Addr {
	s.Helper()
	var batch string
	addrs := make([]netip.Addr, n)
	for i := range n {
		addrs[i] = s.pick(fmt.Sprintf("198.18.%d.%d", i/250, i%250+1), fmt.Sprintf("fd00:18::%x:%x", i/250+1, i%250+1))
		nodad := ""
		if s.family == dataplane.IPv6 {
			nodad = " nodad"
		}
		batch += fmt.Sprintf("address add %s/%d dev lo%s\n", addrs[i], addrs[i].BitLen(), nodad)
	}
	if _, err := s.Up.RunInput(s.Context(), batch, "ip", "-batch", "-"); err != nil {
		s.Fatal(err)
	}
	return addrs
}

// serversOf asks once from each address and says who answered.
func (s *site) serversOf(clients []netip.Addr) []string {
	s.Helper()
	probes := make([]rig.Probe, len(clients))
	for i, c := range clients {
		probes[i] = rig.Probe{
			From: s.Up, Proto: rig.TCP, To: s.vip(7), Source: netip.AddrPortFrom(c, 0), Timeout: 5 * time.Second,
		}
	}
	servers := make([]string, len(clients))
	for i, r := range rig.SendAll(s.Context(), probes) {
		if r.Outcome != rig.Answered {
			s.Fatalf("%s: %s", clients[i], r)
		}
		servers[i] = r.Server
	}
	return servers
}

// Affinity binds more clients than xt_recent can remember, and they stay bound
// while endpoints come, the Service changes, and the agent restarts.
// Proves S6.1, S6.4.
func TestAffinityBindsManyClients(t *testing.T) {
	onSites(t, rig.Options{Endpoints: 3}, func(s *site) {
		e := s.Endpoints
		want := snapshotOf(s.T, s.stickyPort(time.Hour, e[0], e[1]))
		s.sync(want, false)
		clients := s.clients(300)
		first := s.serversOf(clients)
		e0 := 0
		for _, server := range first {
			if server == e[0].Name {
				e0++
			}
		}
		if e0 < 90 || e0 > 210 {
			s.Errorf("%d of 300 clients are bound to the first of two endpoints", e0)
		}
		same := func(what string, but ...string) {
			s.Helper()
			lost := 0
			for i, server := range s.serversOf(clients) {
				if server != first[i] && !slices.Contains(but, first[i]) {
					lost++
				}
			}
			if lost > 0 {
				s.Errorf("%s: %d of 300 clients lost their endpoint", what, lost)
			}
		}
		same("asking again")
		edit := want.Edit()
		edit.Put(s.stickyPort(2*time.Hour, e...)) // another timeout, one endpoint more
		want = built(s.T, edit)
		s.sync(want, false)
		same("an endpoint comes, the timeout changes")
		s.open()
		s.sync(want, false)
		same("the agent restarts")
		edit = want.Edit()
		edit.Put(s.stickyPort(2*time.Hour, e[0], e[2]))
		want = built(s.T, edit)
		s.sync(want, false)
		same("an endpoint leaves", e[1].Name)
		edit = want.Edit()
		edit.Put(s.stickyPort(2*time.Hour, e...))
		want = built(s.T, edit)
		s.sync(want, false)
		same("it comes back", e[1].Name)
		s.settled(want)
	})
}

// kubernetes#35677: the timeout is in seconds and ends.
// Proves S6.3.
func TestAffinityEnds(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		s.sync(snapshotOf(s.T, s.stickyPort(time.Second, s.Endpoints...)), false)
		first := s.ask(s.Client, s.vip(7)).Server
		set := ""
		for _, e := range s.endpoints(s.Endpoints...) {
			name := affinitySet(tcp("sticky"), dataplane.Cluster, e.Addr)
			if s.entries(name) > 0 {
				set = name
			}
		}
		if set == "" {
			s.Fatal("no set remembers the client")
		}
		s.until("the client is forgotten", func() bool { return s.entries(set) == 0 })
		s.until("the client gets the other endpoint", func() bool {
			s.until("the client is forgotten", func() bool { return s.entries(set) == 0 })
			return s.ask(s.Client, s.vip(7)).Server != first
		})
	})
}

// entries counts the members of a set that are alive.
func (s *site) entries(set string) int {
	s.Helper()
	n := 0
	err := s.Node.Do(func() error {
		sets, err := s.plane.program.Kernel.Sets(s.Context(), func(name string) bool { return name == set })
		for _, found := range sets {
			n += len(found.Entries)
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	return n
}

// kubernetes#103000: each port of a Service binds on its own, and the pools of
// all endpoints and of this node's do too.
// Proves S6.2.
func TestAffinityIsByPortAndPool(t *testing.T) {
	one := clusterIP("web", "10.96.0.1:80", endpoints("10.244.1.11:80"))
	two := clusterIP("web", "10.96.0.1:81", endpoints("10.244.1.11:80"))
	two.Name.Port = "b"
	ep := one.Pools[0].Endpoints[0].Addr
	names := map[string]bool{
		affinitySet(one.Name, dataplane.Cluster, ep): true,
		affinitySet(one.Name, dataplane.Local, ep):   true,
		affinitySet(two.Name, dataplane.Cluster, ep): true,
	}
	if len(names) != 3 {
		t.Errorf("sets are shared: %v", names)
	}
}

// Explain speaks of a new client, and adds to whom this one is bound.
func TestExplainTellsOfAffinity(t *testing.T) {
	s := newSite(t, rig.Options{}, "nft", dataplane.IPv4)
	want := snapshotOf(s.T, s.stickyPort(time.Hour, s.Endpoints...))
	s.sync(want, false)
	bound := s.ask(s.Client, s.vip(7))
	f := dataplane.Flow{
		Src: netip.AddrPortFrom(s.addr(s.Client), 40000), Dst: s.vip(7), Protocol: dataplane.TCP, InInterface: s.PodIface(s.Client),
	}
	var e dataplane.Explanation
	err := s.Node.Do(func() (err error) {
		e, err = s.plane.Explain(s.Context(), f)
		return err
	})
	if err == nil {
		err = want.Decide(f).Agrees(e)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Notes) != 1 || !strings.Contains(e.Notes[0], bound.Local.String()) {
		t.Errorf("notes %q, want one that names %s", e.Notes, bound.Local)
	}
}
