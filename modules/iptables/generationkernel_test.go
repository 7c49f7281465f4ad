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
