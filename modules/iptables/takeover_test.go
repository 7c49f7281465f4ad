package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// kubeProxy is what kube-proxy leaves: for each Service a chain, and one for
// each endpoint; one long list of Services; canaries; its order of options.
func (s *site) kubeProxy(services map[string]netip.AddrPort, es []dataplane.Endpoint) string {
	var declare, list, rules strings.Builder
	for name, vip := range services {
		svc := poolChain(tcp(name), dataplane.Cluster)
		fmt.Fprintf(&declare, ":%s - [0:0]\n", svc)
		fmt.Fprintf(&list, `-A KUBE-SERVICES -d %s -p tcp -m comment --comment "default/%s cluster IP" -m tcp --dport %d -j %s`+"\n",
			vip.Addr(), name, vip.Port(), svc)
		for i, e := range es {
			sep := endpointChain(tcp(name), dataplane.Cluster, e.Addr)
			fmt.Fprintf(&declare, ":%s - [0:0]\n", sep)
			chance := ""
			if left := len(es) - i; left > 1 {
				chance = fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(left))
			}
			fmt.Fprintf(&rules, `-A %[1]s -m comment --comment "default/%[2]s -> %[3]s" %[4]s-j %[5]s
-A %[5]s -s %[6]s -m comment --comment default/%[2]s -j KUBE-MARK-MASQ
-A %[5]s -p tcp -m comment --comment default/%[2]s -m tcp -j DNAT --to-destination %[3]s
`, svc, name, e.Addr, chance, sep, e.Addr.Addr())
		}
	}
	return fmt.Sprintf(`*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
%s-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
%s-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
%sCOMMIT
`, declare.String(), list.String(), rules.String())
}

// kube-proxy's chains are taken over while flows come and go, and a Service
// that it had and that is gone is reported.
// Proves S9.7, calico#11753, kubernetes#102314.
func TestKubeProxyIsTakenOver(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		s.restore(s.kubeProxy(map[string]netip.AddrPort{"web": s.vip(1), "old": s.vip(2)}, s.endpoints(s.Endpoints...)))
		s.answers(s.Client, s.vip(1), s.addr(s.Client), s.Endpoints...)
		conn, err := s.Client.Dial(s.Context(), rig.TCP, netip.AddrPort{}, s.vip(1))
		if err != nil {
			s.Fatal(err)
		}
		defer conn.Close()

		stop := make(chan struct{})
		var wg sync.WaitGroup
		var asked int
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got := s.ask(s.Client, s.vip(1)); got.Outcome != rig.Answered {
					s.Errorf("during the take-over: %s", got)
				}
				asked++
			}
		})
		want := snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints...)))
		r := s.sync(want, false)
		close(stop)
		wg.Wait()
		if asked == 0 {
			s.Error("nobody asked during the take-over")
		}
		if got := rig.Ask(s.Context(), conn); got.Outcome != rig.Answered {
			s.Errorf("the connection from before: %s", got)
		}
		gone := dataplane.FrontendKey{Addr: s.vip(2).Addr(), Port: 80, Protocol: dataplane.TCP}
		if !slices.Equal(r.Removed, []dataplane.FrontendKey{gone}) {
			s.Errorf("removed %v, want %v", r.Removed, gone)
		}
		s.settled(want)
		for _, left := range []string{"KUBE-SEP-", "KUBE-PROXY-CANARY", poolChain(tcp("old"), dataplane.Cluster)} {
			if now := s.dump(); strings.Contains(now, left) {
				s.Errorf("%s is left:\n%s", left, now)
			}
		}
		if !strings.Contains(s.dump(), ":KUBE-KUBELET-CANARY") {
			s.Error("kubelet's canary is gone")
		}
		s.answers(s.Client, s.vip(1), s.addr(s.Client), s.Endpoints...)
	})
}

// What kube-proxy left goes with a clean-up, which may be repeated.
// Proves S9.7.
func TestCleanupAfterKubeProxy(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		s.restore("*nat\n:KUBE-KUBELET-CANARY - [0:0]\n-A PREROUTING -p tcp --dport 1 -j RETURN\nCOMMIT\n*filter\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n*mangle\n-A PREROUTING -p tcp --dport 1 -j RETURN\nCOMMIT\n")
		before := s.dump()
		s.restore(s.kubeProxy(map[string]netip.AddrPort{"web": s.vip(1)}, s.endpoints(s.Endpoints...)))
		for range 2 {
			if err := s.Node.Do(func() error { return Mode(Options{}).Cleanup(s.Context(), s.family) }); err != nil {
				s.Fatal(err)
			}
			if after := s.dump(); after != before {
				s.Errorf("left after clean-up:\n%s\nwant\n%s", after, before)
			}
		}
	})
}

// kubernetes#71305: rules in the other back end win or lose unseen; say so, and
// remove them with a clean-up.
func TestOtherBackendIsReported(t *testing.T) {
	s := newSite(t, rig.Options{}, netfilter.Legacy, dataplane.IPv4)
	want := snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints[0])))
	s.sync(want, false)
	s.backend = netfilter.NFT
	s.open()
	r := s.sync(want, false)
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "legacy nat KUBE-SERVICES") {
		t.Errorf("warnings %q", r.Warnings)
	}
	if r := s.sync(want, true); len(r.Warnings) != 0 {
		t.Errorf("the warning is repeated with each Sync: %q", r.Warnings)
	}
	if err := s.Node.Do(func() error { return Mode(Options{}).Cleanup(s.Context(), s.family) }); err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{netfilter.NFT, netfilter.Legacy} {
		s.backend = backend
		if now := s.dump(); strings.Contains(now, "KUBE-") {
			t.Errorf("%s holds after a clean-up:\n%s", backend, now)
		}
	}
}

// kubernetes#7370: somebody holds the xtables lock for long; the wait has a
// limit, the error says what it is, and afterwards all is right.
func TestLockIsWaitedForWithALimit(t *testing.T) {
	s := newSite(t, rig.Options{}, netfilter.Legacy, dataplane.IPv4)
	want := snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints[0])))
	var p dataplane.Plane
	err := s.Node.Do(func() (err error) {
		p, err = Mode(Options{Backend: netfilter.Legacy, LockWait: time.Second}).Open(s.Context(), s.family)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sync := func() error {
		return s.Node.Do(func() error {
			_, err := p.Sync(s.Context(), dataplane.SyncRequest{Want: want})
			return err
		})
	}
	release := s.holdLock()
	if err := sync(); err == nil || !strings.Contains(err.Error(), "xtables lock") {
		t.Errorf("with the lock held: %v", err)
	}
	release()
	if err := sync(); err != nil {
		t.Error(err)
	}
	s.settled(want)
}
