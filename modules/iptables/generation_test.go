package iptables

import (
	"context"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

// counted is a kernel that counts writes as nf_tables does, and readings.
type counted struct {
	netfilter.Kernel
	generation uint32
	saves      int
}

func (k *counted) Generation(context.Context) (uint32, error) { return k.generation, nil }

func (k *counted) Save(ctx context.Context, tables []netfilter.Table, visit func(netfilter.Table, netfilter.Chain) error) error {
	k.saves++
	return k.Kernel.Save(ctx, tables, visit)
}

func (k *counted) Restore(ctx context.Context, tx netfilter.Transaction) error {
	err := k.Kernel.Restore(ctx, tx)
	if err == nil {
		k.generation++
	}
	return err
}

// Rules that nobody wrote since are not read again, and all others are.
func TestRulesAreReadOnlyWhenSomebodyWrote(t *testing.T) {
	k := &counted{Kernel: netfiltertest.New(dataplane.IPv4), generation: 7}
	p := fakePlane(k)
	want := snapshotOf(t, many(10)...)
	sync := func(what string, distrust, reads bool) dataplane.Report {
		t.Helper()
		k.saves = 0
		r := mustSync(t, p, want, time.Time{}, distrust)
		if (k.saves > 0) != reads {
			t.Errorf("%s: %d tables are read, want some: %t", what, k.saves, reads)
		}
		return r
	}
	sync("a start", false, true)
	sync("nothing happened", true, false)
	edit := want.Edit()
	edit.Put(clusterIP("more", "10.96.7.1:80", endpoints("10.9.0.1:80")))
	want = built(t, edit)
	sync("a change of ours", false, false)
	sync("nothing happened since", true, false)

	damage := netfilter.Transaction{Table: netfilter.NAT, Chains: []netfilter.Chain{{Name: chainMarkMasq}}}
	if err := k.Restore(t.Context(), damage); err != nil {
		t.Fatal(err)
	}
	if r := sync("somebody wrote", true, true); len(r.Repaired) != 1 {
		t.Errorf("repaired %v", r.Repaired)
	}
	sync("nothing happened after a repair", true, false)

	// A write of somebody that a change of ours follows must not be missed.
	if err := k.Restore(t.Context(), damage); err != nil {
		t.Fatal(err)
	}
	edit = want.Edit()
	edit.Delete(tcp("more"))
	want = built(t, edit)
	sync("a change of ours after somebody's", false, false)
	if r := sync("both", true, true); len(r.Repaired) != 1 {
		t.Errorf("repaired %v", r.Repaired)
	}

	// The sets have no generation.
	gone := netfilter.SetPlan{Remove: []netfilter.SetChange{setClusterIP.entry(dataplane.IPv4, netfilter.AddrEntry(many(1)[0].Frontends[0].Addr))}}
	if err := k.ChangeSets(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if r := sync("a set changed", true, false); len(r.Repaired) != 1 || r.Writes != 1 {
		t.Errorf("repaired %v with %d writes", r.Repaired, r.Writes)
	}
}

// An audit of what was applied last costs next to nothing if nobody wrote, and
// misses nothing if somebody did; one of another snapshot reads all.
func TestAuditReadsOnlyWhatMayDiffer(t *testing.T) {
	k := &counted{Kernel: netfiltertest.New(dataplane.IPv4), generation: 7}
	p := fakePlane(k)
	want := snapshotOf(t, many(10)...)
	mustSync(t, p, want, time.Time{}, false)
	audit := func(what string, of *dataplane.Snapshot, reads bool, differences int) {
		t.Helper()
		k.saves = 0
		found, err := p.Audit(t.Context(), of)
		if err != nil || len(found) != differences || (k.saves > 0) != reads {
			t.Errorf("%s: %d tables are read, want some: %t; %v, %v, want %d", what, k.saves, reads, found, err, differences)
		}
	}
	audit("nothing happened", want, false, 0)
	edit := want.Edit()
	edit.Delete(many(1)[0].Name)
	audit("another snapshot", built(t, edit), true, 6) // two chains, a jump, three entries of sets
	gone := netfilter.SetPlan{Remove: []netfilter.SetChange{setClusterIP.entry(dataplane.IPv4, netfilter.AddrEntry(many(1)[0].Frontends[0].Addr))}}
	if err := k.ChangeSets(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	audit("a set changed", want, false, 1)
	damage := netfilter.Transaction{Table: netfilter.NAT, Chains: []netfilter.Chain{{Name: chainMarkMasq}}}
	if err := k.Restore(t.Context(), damage); err != nil {
		t.Fatal(err)
	}
	audit("somebody wrote", want, true, 2)
	audit("nobody wrote since, and nobody repaired", want, true, 2)
	mustSync(t, p, want, time.Time{}, true)
	audit("repaired", want, false, 0)
}
