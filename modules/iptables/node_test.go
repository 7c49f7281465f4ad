package iptables

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// site is a rig whose node has a plane, on one back end, for one family.
type site struct {
	*testing.T
	*rig.Rig
	backend string
	family  dataplane.Family
	plane   *Plane
}

// onSites runs a test on both back ends and for both families.
func onSites(t *testing.T, opts rig.Options, test func(*site)) {
	for _, backend := range []string{netfilter.NFT, netfilter.Legacy} {
		for _, f := range dataplane.Families() {
			t.Run(backend+"/"+f.String(), func(t *testing.T) {
				t.Parallel()
				test(newSite(t, opts, backend, f))
			})
		}
	}
}

func newSite(t *testing.T, opts rig.Options, backend string, f dataplane.Family) *site {
	s := &site{T: t, Rig: rig.New(t, opts), backend: backend, family: f}
	for _, h := range append(s.Endpoints, s.Remote) {
		h.ServeAll(t, 8080)
	}
	s.open()
	return s
}

// open opens a plane that knows nothing, as after a restart.
func (s *site) open() {
	s.Helper()
	s.plane = openOn(s.T, s.Node, s.backend, s.family)
}

// openOn opens a plane on a host of a rig, on one of the back ends.
func openOn(tb testing.TB, h *rig.Host, backend string, f dataplane.Family) *Plane {
	tb.Helper()
	var p dataplane.Plane
	err := h.Do(func() (err error) {
		p, err = Mode(Options{Backend: backend}).Open(tb.Context(), f)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return p.(*Plane)
}

func (s *site) sync(want *dataplane.Snapshot, distrust bool) dataplane.Report {
	s.Helper()
	var r dataplane.Report
	err := s.Node.Do(func() (err error) {
		r, err = s.plane.Sync(s.Context(), dataplane.SyncRequest{Now: time.Now(), Want: want, Distrust: distrust})
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	for _, f := range r.Failed {
		s.Errorf("%s could not be programmed: %v", f.Name, f.Err)
	}
	return r
}

// settled fails unless the kernel is as it is wanted.
func (s *site) settled(want *dataplane.Snapshot) {
	s.Helper()
	err := s.Node.Do(func() error {
		found, err := s.plane.Audit(s.Context(), want)
		for _, d := range found {
			s.Errorf("audit: %s", d)
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// tool is an iptables program of the site, such as iptables-nft-save.
func (s *site) tool(suffix string) string {
	name := "iptables-"
	if s.family == dataplane.IPv6 {
		name = "ip6tables-"
	}
	return name + s.backend + suffix
}

// iptables runs iptables on the node.
func (s *site) iptables(args ...string) string {
	s.Helper()
	return s.run(append([]string{s.tool("")}, args...)...)
}

func (s *site) run(argv ...string) string {
	s.Helper()
	out, err := s.Node.Run(s.Context(), argv...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// restore loads rules as others would.
func (s *site) restore(rules string) {
	s.Helper()
	if _, err := s.Node.RunInput(s.Context(), rules, s.tool("-restore"), "--noflush"); err != nil {
		s.Fatal(err)
	}
}

// dump is what the node's kernel holds of rules and sets, without counters and
// what packets leave behind.
func (s *site) dump() string {
	s.Helper()
	var lines []string
	for line := range strings.Lines(s.run(s.tool("-save")) + s.run("ipset", "save", "-sorted")) {
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "add KUBE-AFF") {
			continue
		}
		line, _, _ = strings.Cut(line, " [")
		if strings.HasPrefix(line, "create") {
			line = strings.Join(strings.Fields(line)[:3], " ")
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

// pick is the address of the site's family.
func (s *site) pick(v4, v6 string) netip.Addr {
	if s.family == dataplane.IPv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

// addr is a host's address in the site's family.
func (s *site) addr(h *rig.Host) netip.Addr { return h.Addr(s.family.Unspecified()) }

// endpoints are the servers of hosts.
func (s *site) endpoints(hosts ...*rig.Host) []dataplane.Endpoint {
	all := make([]string, len(hosts))
	for i, h := range hosts {
		all[i] = netip.AddrPortFrom(s.addr(h), 8080).String()
	}
	return endpoints(all...)
}

// vip is the nth address of the Services.
func (s *site) vip(n byte) netip.AddrPort {
	a := s.pick("10.96.0.0", "fd00:96::").AsSlice()
	a[len(a)-1] = n
	ip, _ := netip.AddrFromSlice(a)
	return netip.AddrPortFrom(ip, 80)
}

// ask sends a probe and waits for an answer longer than a busy machine needs.
func (s *site) ask(from *rig.Host, to netip.AddrPort) rig.Result {
	return rig.Probe{From: from, Proto: rig.TCP, To: to, Timeout: 5 * time.Second}.Send(s.Context())
}

// answers fails unless one of the hosts answers, and sees the source.
func (s *site) answers(from *rig.Host, to netip.AddrPort, source netip.Addr, servers ...*rig.Host) {
	s.Helper()
	got := s.ask(from, to)
	ok := false
	for _, h := range servers {
		ok = ok || got.Server == h.Name
	}
	if !ok || got.Source.Addr() != source {
		s.Errorf("%s asks %s: %s, want source %s", from.Name, to, got, source)
	}
}

// refuses fails unless a flow is refused at once.
func (s *site) refuses(from *rig.Host, to netip.AddrPort) {
	s.Helper()
	if got := s.ask(from, to); got.Outcome != rig.Refused {
		s.Errorf("%s asks %s: %s, want refused", from.Name, to, got)
	}
}

// until waits for a condition.
func (s *site) until(what string, met func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	for !met() {
		if ctx.Err() != nil {
			s.Fatalf("waited in vain until %s", what)
		}
	}
}

// holdLock takes the xtables lock of the rig until release is called.
func (s *site) holdLock() (release func()) {
	s.Helper()
	var lock *os.File
	err := s.Node.Do(func() (err error) {
		if lock, err = os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return err
		}
		return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	})
	if err != nil {
		s.Fatal(err)
	}
	return func() {
		if err := lock.Close(); err != nil {
			s.Fatal(err)
		}
	}
}
