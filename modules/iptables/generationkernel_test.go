package iptables

import (
	"context"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// The kernel's own count is the one that is meant.
func TestGenerationOfTheKernel(t *testing.T) {
	s := newSite(t, rig.Options{}, netfilter.NFT, dataplane.IPv4)
	want := snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints[0])))
	s.sync(want, false)
	k := &reader{Kernel: s.plane.program.Kernel}
	s.plane.program.Kernel = k
	s.sync(want, true)
	want = snapshotOf(s.T, clusterIP("web", s.vip(1).String(), s.endpoints(s.Endpoints...)))
	s.sync(want, false)
	s.sync(want, true)
	if k.saves != 0 {
		t.Errorf("%d tables are read although nobody else wrote", k.saves)
	}
	s.iptables("-t", "nat", "-F", "KUBE-MARK-MASQ")
	if r := s.sync(want, true); len(r.Repaired) != 1 || !strings.Contains(r.Repaired[0].Object, chainMarkMasq) {
		t.Errorf("repaired %v", r.Repaired)
	}
	s.settled(want)
}

// What one family of a mode writes is no reason for the other to read its rules, and
// what others write is.
func TestTheOtherFamilyIsNoStranger(t *testing.T) {
	r := rig.New(t, rig.Options{})
	mode := Mode(Options{Backend: netfilter.NFT})
	want := snapshotOf(t, clusterIP("web", "10.96.0.10:80", endpoints("10.9.0.1:80")))
	planes := make(map[dataplane.Family]*Plane)
	sync := func(f dataplane.Family, distrust bool) {
		t.Helper()
		err := r.Node.Do(func() error {
			_, err := planes[f].Sync(t.Context(), dataplane.SyncRequest{Want: want, Distrust: distrust})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range dataplane.Families() {
		err := r.Node.Do(func() error {
			p, err := mode.Open(t.Context(), f)
			if err == nil {
				planes[f] = p.(*Plane)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range dataplane.Families() {
		sync(f, false)
	}
	k := &reader{Kernel: planes[dataplane.IPv4].program.Kernel}
	planes[dataplane.IPv4].program.Kernel = k
	sync(dataplane.IPv4, true)
	if k.saves != 0 {
		t.Errorf("%d tables of IPv4 are read because IPv6 was written", k.saves)
	}
	if _, err := r.Node.Run(t.Context(), "ip6tables-nft", "-t", "nat", "-N", "STRANGER"); err != nil {
		t.Fatal(err)
	}
	sync(dataplane.IPv4, true)
	if k.saves == 0 {
		t.Error("no table is read although somebody wrote")
	}
}

// reader counts the readings of a real kernel.
type reader struct {
	netfilter.Kernel
	saves int
}

func (k *reader) Generation(ctx context.Context) (uint32, error) {
	return k.Kernel.(interface {
		Generation(context.Context) (uint32, error)
	}).Generation(ctx)
}

func (k *reader) Save(ctx context.Context, tables []netfilter.Table, visit func(netfilter.Table, netfilter.Chain) error) error {
	k.saves++
	return k.Kernel.Save(ctx, tables, visit)
}
