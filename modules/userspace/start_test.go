package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
	"github.com/portway/portway/modules/relay"
)

// recorder notes the transactions that a kernel is asked for, and refuses those
// with a text.
type recorder struct {
	netfilter.Kernel
	refuses string
	writes  []string
}

func (k *recorder) Restore(ctx context.Context, tx netfilter.Transaction) error {
	text := tx.String()
	k.writes = append(k.writes, text)
	if k.refuses != "" && strings.Contains(text, k.refuses) {
		return &netfilter.RestoreError{Table: tx.Table, Err: errors.New("exit status 1")}
	}
	return k.Kernel.Restore(ctx, tx)
}

// record makes a plane write through a recorder.
func (s *site) record() *recorder {
	k := &recorder{Kernel: s.plane.program.Kernel}
	s.plane.program.Kernel = k
	return k
}

// kubernetes#133773: what the node needs to come up is there first, and nothing
// is refused before everything is known.
func TestColdStartHasAnOrder(t *testing.T) {
	s := onMemory(t)
	k := s.record()
	sps := many(22)
	sps[20].Priority, sps[21].Priority = dataplane.PriorityDNS, dataplane.PriorityAPIServer
	s.sync(snapshotOf(t, sps...), false)
	first := func(text string) int {
		return slices.IndexFunc(k.writes, func(w string) bool { return strings.Contains(w, text) })
	}
	api, dns, others := first(`"default/s21"`), first(`"default/s20"`), first(`"default/s7"`)
	refusal := first("--match-set " + setClusterIP.name(s.family))
	if api < 0 || dns > api || others <= dns || refusal <= others {
		t.Errorf("API server, DNS, other Services, refusal of unknown ports: writes %d, %d, %d, %d", api, dns, others, refusal)
	}
}

// A Service that the kernel refuses does not stop the others, at a start and at
// a change; its older version goes on.
func TestOneRefusedServiceIsIsolated(t *testing.T) {
	s := onMemory(t)
	k := s.record()
	sps := many(40)
	k.refuses = `"default/s17"`
	want := snapshotOf(t, sps...)
	r := s.sync(want, false)
	if len(r.Failed) != 1 || r.Failed[0].Name != sps[17].Name || r.Again != s.now.Add(program.RetryAfter) {
		t.Fatalf("the report is %+v, want that s17 failed", r)
	}
	if n := len(s.plane.listeners.open); n != 39 {
		t.Errorf("%d listeners are open, want those of all but s17", n)
	}
	k.refuses = ""
	s.now = s.now.Add(program.RetryAfter)
	if r := s.sync(want, false); len(r.Failed) != 0 {
		t.Fatalf("later: failed %v", r.Failed)
	}

	// Another port of s17, which is refused, beside one of s18, which is not.
	k.refuses = "--dport 81 -m comment --comment \"default/s17\""
	want = edited(t, want.Edit(), changed(sps[17]), changed(sps[18]))
	r = s.sync(want, false)
	if len(r.Failed) != 1 || r.Failed[0].Name != sps[17].Name {
		t.Fatalf("the report is %+v, want that s17 failed", r)
	}
	rules := s.nat(t)
	for text, want := range map[string]bool{
		"10.96.0.17/32 -p tcp -m tcp --dport 80": true, "10.96.0.17/32 -p tcp -m tcp --dport 81": false,
		"10.96.0.18/32 -p tcp -m tcp --dport 80": false, "10.96.0.18/32 -p tcp -m tcp --dport 81": true,
	} {
		if strings.Contains(rules, text) != want {
			t.Errorf("there is a rule %q: %t, want %t", text, !want, want)
		}
	}
}

// nat is the nat table of a kernel in memory.
func (s *site) nat(t *testing.T) string {
	t.Helper()
	chains, err := netfilter.ReadTable(t.Context(), s.plane.program.Kernel, netfilter.NAT, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for name, c := range chains {
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "-A %s %s\n", name, r)
		}
	}
	return b.String()
}

// A flow to a NodePort passes the jumps to the ranges that are in use and the
// rules of its own range, not those of all NodePorts.
func TestNodePortsAreNoList(t *testing.T) {
	s := onMemory(t)
	s.sync(snapshotOf(t, many(1000)...), false)
	f := dataplane.Flow{
		Src: netip.MustParseAddrPort("203.0.113.7:40000"), Dst: netip.MustParseAddrPort("192.168.77.10:30999"),
		Protocol: dataplane.TCP, InInterface: "up",
	}
	chains, err := netfilter.ReadTable(t.Context(), s.plane.program.Kernel, netfilter.NAT, nil)
	if err != nil {
		t.Fatal(err)
	}
	passed := len(chains[chainNodePort].Rules) + len(chains[program.PortBucket(bucketsNodePort, f.Protocol, f.Dst.Port())].Rules)
	if limit := 128 + 1000/128 + 1; passed > limit {
		t.Errorf("it passes up to %d rules, want at most %d", passed, limit)
	}
	s.plane.local = func() (func(netip.Addr) bool, error) {
		return func(a netip.Addr) bool { return a == f.Dst.Addr() }, nil
	}
	e, err := s.plane.Explain(t.Context(), f)
	if err != nil || len(e.Outcomes) == 0 || e.Outcomes[0].Action != dataplane.Forward {
		t.Errorf("the last one's flow is explained by %+v, %v", e, err)
	}
}

// While no process runs the rules stand, so a stranger who listens at one of the
// ports gets clients: DESIGN.md says so. The next process says who, takes
// another port, and leads clients there.
func TestStrangerTakesAFreedPort(t *testing.T) {
	onSites(t, func(s *site) {
		want := s.snapshot(dataplane.Empty(), s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0])))
		s.sync(want, false)
		was := s.listener()
		s.close()
		stranger, err := s.Node.Listen(s.Context(), was.String())
		if err != nil {
			s.Fatal(err)
		}
		defer stranger.Close()
		s.open()
		r := s.sync(want, false)
		if len(r.Failed) != 0 || !slices.ContainsFunc(r.Warnings, func(w string) bool {
			return strings.Contains(w, was.String()) && strings.Contains(w, "default/web")
		}) {
			s.Errorf("failed %v, warnings %q: want one that names %s and the Service", r.Failed, r.Warnings, was)
		}
		if at := s.listener(); at == was || at.Port() < firstPort || at.Port() >= firstPort+ports {
			s.Errorf("listens at %s now", at)
		}
		s.answers(s.Client, s.vip(1), "e1")
		s.answers(s.Node, s.vip(1), "e1")
	})
}

// The rules of an earlier process lead to its ports until they are written anew.
// A Service that is new must not listen there: it would get another one's
// clients. So much the less while the first Sync cannot write.
func TestEarlierPortsAreLeftToTheirServices(t *testing.T) {
	s := onMemory(t)
	old := many(300)
	s.sync(snapshotOf(t, old...), false)
	led := make(map[netip.AddrPort]dataplane.ServicePortName)
	for k, l := range s.plane.listeners.open {
		led[l.Addr()] = k.name
	}
	k := s.plane.program.Kernel
	s.close()

	s.reopen(t, &failing{k})
	next := append([]*dataplane.ServicePort(nil), old[:100]...)
	for _, sp := range many(1000)[300:] {
		sp.Priority = dataplane.PriorityDNS // so that they come before the old ones
		next = append(next, sp)
	}
	err := s.Node.Do(func() error {
		_, err := s.plane.Sync(t.Context(), dataplane.SyncRequest{Now: s.now, Want: snapshotOf(t, next...)})
		return err
	})
	if !errors.Is(err, errMadeToFail) {
		t.Fatalf("error %v", err)
	}
	same := 0
	for k, l := range s.plane.listeners.open {
		owner, earlier := led[l.Addr()]
		if earlier && owner != k.name {
			t.Errorf("%s listens at %s, to which rules lead clients of %s", k.name, l.Addr(), owner)
		}
		if earlier && owner == k.name {
			same++
		}
	}
	if len(s.plane.listeners.open) != 800 || same != 100 {
		t.Errorf("%d listeners, %d of them where they were, want 800 and 100", len(s.plane.listeners.open), same)
	}
}

var errMadeToFail = errors.New("made to fail")

// failing is a kernel that can only be read.
type failing struct{ netfilter.Kernel }

func (failing) Restore(context.Context, netfilter.Transaction) error { return errMadeToFail }

// kubernetes#15527: listeners that a Sync did not come to close are closed by
// the next one.
func TestNothingStaysOpen(t *testing.T) {
	s := onMemory(t)
	k := s.plane.program.Kernel
	want := snapshotOf(t, many(10)...)
	s.sync(want, false)
	edit := want.Edit()
	for _, sp := range many(10)[5:] {
		edit.Delete(sp.Name)
	}
	want = edited(t, edit)
	s.plane.program.Kernel = &failing{k}
	if _, err := s.plane.Sync(t.Context(), dataplane.SyncRequest{Want: want}); !errors.Is(err, errMadeToFail) {
		t.Fatalf("error %v", err)
	}
	s.plane.program.Kernel = k
	s.sync(want, false)
	if n := len(s.plane.listeners.open); n != 5 || len(s.plane.listeners.retired) != 0 {
		t.Errorf("%d listeners are open and %v retired, want 5 and none", n, s.plane.listeners.retired)
	}
	table := s.plane.Table()
	for k, l := range s.plane.listeners.open {
		if found, ok := relay.Find(table, k.name.Protocol, l.Addr()); !ok || found.Route.Name != k.name {
			t.Errorf("nobody listens at %s for %s", l.Addr(), k.name)
		}
	}
	if len(table) != 5 {
		t.Errorf("%d listeners are told of, want 5", len(table))
	}
}
