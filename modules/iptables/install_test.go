package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
	"github.com/portway/portway/modules/netfilter/program"
)

// picky is a kernel that refuses transactions in which a text occurs, and sets
// with a name. It names the line if it is talkative.
type picky struct {
	netfilter.Kernel
	hates, hatesSet string
	talkative       bool
	refusals        int
}

func (k *picky) Restore(ctx context.Context, tx netfilter.Transaction) error {
	text := tx.String()
	if k.hates == "" || !strings.Contains(text, k.hates) {
		return k.Kernel.Restore(ctx, tx)
	}
	k.refusals++
	e := &netfilter.RestoreError{Table: tx.Table, Err: errors.New("exit status 1")}
	for line := range strings.Lines(text) {
		if chain, _, ok := strings.Cut(strings.TrimPrefix(line, "-A "), " "); ok && k.talkative && strings.Contains(line, k.hates) {
			e.Chain, e.Text = chain, strings.TrimSpace(line)
			break
		}
	}
	return e
}

func (k *picky) ChangeSets(ctx context.Context, p netfilter.SetPlan) error {
	for _, s := range p.Create {
		if s.Name == k.hatesSet {
			k.refusals++
			return fmt.Errorf("making the ipset %s: %w", s.Name, nl.IPSetError(nl.IPSET_ERR_MAX_SETS))
		}
	}
	return k.Kernel.ChangeSets(ctx, p)
}

func fakePlane(k netfilter.Kernel) *Plane {
	return NewPlane(dataplane.IPv4, k, testNode().Holds)
}

func mustSync(t testing.TB, p *Plane, want *dataplane.Snapshot, now time.Time, distrust bool) dataplane.Report {
	t.Helper()
	r, err := p.Sync(t.Context(), dataplane.SyncRequest{Now: now, Want: want, Distrust: distrust})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// failedNames are the names in a report.
func failedNames(r dataplane.Report) []string {
	var names []string
	for _, f := range r.Failed {
		names = append(names, f.Name.String())
	}
	return names
}

// wantForwarded fails unless a flow to an address is forwarded as the snapshot
// decides.
func wantForwarded(t *testing.T, p *Plane, s *dataplane.Snapshot, to string) {
	t.Helper()
	f := dataplane.Flow{
		Src: netip.MustParseAddrPort("10.244.1.2:40000"), Dst: netip.MustParseAddrPort(to),
		Protocol: dataplane.TCP, InInterface: "vethc",
	}
	e, err := p.Explain(t.Context(), f)
	if err == nil {
		err = s.Decide(f).Agrees(e)
	}
	if err != nil {
		t.Error(err)
	}
}

// kubernetes#36652: one bad object does not stop the others, whether the tools
// name it or not, at a start and at a change.
// Proves S9.2.
func TestOneRefusedServiceIsIsolated(t *testing.T) {
	for _, talkative := range []bool{true, false} {
		t.Run(fmt.Sprintf("talkative=%t", talkative), func(t *testing.T) {
			sps := many(40)
			bad := sps[17]
			hated := bad.Pools[0].Endpoints[0].Addr.String()
			k := &picky{Kernel: netfiltertest.New(dataplane.IPv4), hates: hated + "\n", talkative: talkative}
			for i := range sps {
				if i != 17 {
					sps[i] = clusterIP(sps[i].Name.Name, sps[i].Frontends[0].Addr.String()+":80", endpoints(fmt.Sprintf("10.9.0.%d:80", i+1)))
				}
			}
			bad.Pools[0].Endpoints = bad.Pools[0].Endpoints[:1]
			want := snapshotOf(t, sps...)
			p := fakePlane(k)
			r := mustSync(t, p, want, time.Time{}, false)
			if got, want := failedNames(r), []string{bad.Name.String()}; !slices.Equal(got, want) {
				t.Fatalf("failed %v, want %v", got, want)
			}
			for i, sp := range sps {
				if i != 17 {
					wantForwarded(t, p, want, sp.Frontends[0].Addr.String()+":80")
				}
			}
			if limit := 15; k.refusals > limit {
				t.Errorf("finding it took %d attempts, want at most %d", k.refusals, limit)
			}
		})
	}
}

// Proves S9.2.
func TestOldVersionStaysWhenTheNewOneIsRefused(t *testing.T) {
	for _, talkative := range []bool{true, false} {
		k := &picky{Kernel: netfiltertest.New(dataplane.IPv4), talkative: talkative}
		p := fakePlane(k)
		old := snapshotOf(t, clusterIP("web", "10.96.0.1:80", endpoints("10.244.1.11:80")), clusterIP("dns", "10.96.0.2:80", endpoints("10.244.1.12:80")))
		mustSync(t, p, old, time.Time{}, false)
		k.hates = "10.244.1.66"
		edit := old.Edit()
		edit.Put(clusterIP("web", "10.96.0.1:80", endpoints("10.244.1.66:80")))
		edit.Put(clusterIP("dns", "10.96.0.2:80", endpoints("10.244.1.13:80")))
		next := built(t, edit)
		start := time.Unix(1000, 0)
		r := mustSync(t, p, next, start, false)
		if got := failedNames(r); !slices.Equal(got, []string{"default/web/TCP"}) {
			t.Fatalf("talkative=%t: failed %v", talkative, got)
		}
		wantForwarded(t, p, old, "10.96.0.1:80")
		wantForwarded(t, p, next, "10.96.0.2:80")
		if want := start.Add(program.RetryAfter); r.Again != want {
			t.Errorf("wants to be called again at %v, want %v", r.Again, want)
		}

		// It is not tried again at once, but later, and then it succeeds.
		k.refusals = 0
		mustSync(t, p, next, start.Add(time.Second), false)
		if k.refusals != 0 {
			t.Errorf("talkative=%t: tried again at once", talkative)
		}
		k.hates = ""
		if r := mustSync(t, p, next, start.Add(program.RetryAfter), false); len(r.Failed) != 0 {
			t.Errorf("talkative=%t: still failed %v", talkative, failedNames(r))
		}
		wantForwarded(t, p, next, "10.96.0.1:80")
	}
}

func TestRefusedSetIsIsolated(t *testing.T) {
	sticky := clusterIP("sticky", "10.96.7.3:80", endpoints("10.9.0.3:80"))
	sticky.Affinity = time.Hour
	k := &picky{Kernel: netfiltertest.New(dataplane.IPv4)}
	k.hatesSet = affinitySet(sticky.Name, dataplane.Cluster, sticky.Pools[0].Endpoints[0].Addr)
	p := fakePlane(k)
	want := snapshotOf(t, append(many(5), sticky)...)
	if got := failedNames(mustSync(t, p, want, time.Time{}, false)); !slices.Equal(got, []string{"default/sticky/TCP"}) {
		t.Fatalf("failed %v", got)
	}
	k.hatesSet = ""
	if r := mustSync(t, p, want, time.Time{}, true); len(r.Failed) != 0 {
		t.Errorf("still failed %v", failedNames(r))
	}
	if found, err := p.Audit(t.Context(), want); err != nil || len(found) > 0 {
		t.Errorf("audit finds %v, %v", found, err)
	}
}

func TestWhatIsNobodysFaultIsAnError(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
	}{
		{"the kernel lacks something that all need", &netfilter.RestoreError{Table: netfilter.NAT, Err: errors.New("exit status 2")}},
		{"the lock is held", &netfilter.RestoreError{Table: netfilter.NAT, Err: netfilter.ErrLockTimeout}},
		{"the program does not start", errors.New("no such file")},
	} {
		k := &failing{Kernel: netfiltertest.New(dataplane.IPv4), err: c.err}
		p := fakePlane(k)
		r, err := p.Sync(t.Context(), dataplane.SyncRequest{Want: snapshotOf(t, many(8)...)})
		if !errors.Is(err, c.err) || len(r.Failed) != 0 {
			t.Errorf("%s: error %v, failed %v", c.name, err, failedNames(r))
		}
		k.err = nil
		want := snapshotOf(t, many(8)...)
		if r := mustSync(t, p, want, time.Time{}, false); !r.Full {
			t.Errorf("%s: the Sync after an error trusts its memory", c.name)
		}
		wantForwarded(t, p, want, "10.96.0.1:80")
	}
}

// failing is a kernel whose nat table cannot be written.
type failing struct {
	netfilter.Kernel
	err error
}

func (k *failing) Restore(ctx context.Context, tx netfilter.Transaction) error {
	if k.err != nil && tx.Table == netfilter.NAT {
		return k.err
	}
	return k.Kernel.Restore(ctx, tx)
}

// The frontends that a failed Sync removed are reported by the next one.
func TestRemovedIsOwedAfterAnError(t *testing.T) {
	k := &failing{Kernel: netfiltertest.New(dataplane.IPv4)}
	p := fakePlane(k)
	mustSync(t, p, snapshotOf(t, many(2)...), time.Time{}, false)
	k.err = errors.New("made to fail")
	next := snapshotOf(t, many(1)...)
	if _, err := p.Sync(t.Context(), dataplane.SyncRequest{Want: next}); err == nil {
		t.Fatal("no error")
	}
	p.program.Kernel = unreadable{k}
	if _, err := p.Sync(t.Context(), dataplane.SyncRequest{Want: next}); err == nil {
		t.Fatal("no error")
	}
	p.program.Kernel, k.err = k, nil
	gone := dataplane.FrontendKey{Addr: netip.MustParseAddr("10.96.0.2"), Port: 80, Protocol: dataplane.TCP}
	if r := mustSync(t, p, next, time.Time{}, false); !slices.Equal(r.Removed, []dataplane.FrontendKey{gone}) {
		t.Errorf("removed %v, want %v", r.Removed, gone)
	}
	if r := mustSync(t, p, next, time.Time{}, true); len(r.Removed) != 0 {
		t.Errorf("removed again %v", r.Removed)
	}
}

// unreadable is a kernel that cannot be read.
type unreadable struct{ netfilter.Kernel }

func (unreadable) Save(context.Context, []netfilter.Table, func(netfilter.Table, netfilter.Chain) error) error {
	return errors.New("made to fail")
}

// What one Service gives up another one may take in the same Sync.
// Proves S1.12.
func TestFrontendChangesHands(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		for _, keep := range []bool{false, true} {
			p := fakePlane(netfiltertest.New(dataplane.IPv4))
			first := snapshotOf(t, clusterIP(names[0], "10.96.0.1:80", endpoints("10.9.0.1:80")))
			mustSync(t, p, first, time.Time{}, false)
			edit := first.Edit()
			edit.Put(clusterIP(names[1], "10.96.0.1:80", endpoints("10.9.0.2:80")))
			if keep {
				edit.Put(clusterIP(names[0], "10.96.0.2:80", endpoints("10.9.0.1:80")))
			} else {
				edit.Delete(tcp(names[0]))
			}
			next := built(t, edit)
			if r := mustSync(t, p, next, time.Time{}, false); len(r.Failed) != 0 || !keep && len(r.Removed) != 0 {
				t.Errorf("from %s to %s: failed %v, removed %v", names[0], names[1], r.Failed, r.Removed)
			}
			wantForwarded(t, p, next, "10.96.0.1:80")
		}
	}
}
