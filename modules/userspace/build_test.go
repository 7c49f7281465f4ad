package userspace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
	"github.com/portway/portway/modules/netfilter/program"
	"github.com/portway/portway/modules/relay"
)

// many are n Services with two endpoints each and a NodePort, in the order of
// their numbers.
func many(n int) []*dataplane.ServicePort {
	sps := make([]*dataplane.ServicePort, n)
	for i := range sps {
		pool := &dataplane.Pool{Family: dataplane.IPv4}
		for e := range byte(2) {
			a := netip.AddrFrom4([4]byte{10, 244, byte(i), e})
			pool.Endpoints = append(pool.Endpoints, dataplane.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Weight: 1})
		}
		r := dataplane.Route{Action: dataplane.Forward, Pool: pool}
		sps[i] = &dataplane.ServicePort{
			Name:  dataplane.ServicePortName{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: dataplane.TCP},
			Pools: []*dataplane.Pool{pool},
			Frontends: []*dataplane.Frontend{{
				Kind: dataplane.ClusterIP, Family: dataplane.IPv4, Port: 80, Routes: [3]dataplane.Route{r, r, r},
				Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
			}, {
				Kind: dataplane.NodePort, Family: dataplane.IPv4, Port: uint16(30000 + i), Routes: [3]dataplane.Route{r, r, r},
			}},
		}
	}
	return sps
}

// changed is another version of a Service: at another port.
func changed(sp *dataplane.ServicePort) *dataplane.ServicePort {
	next, first := *sp, *sp.Frontends[0]
	first.Port = 81
	next.Frontends = append([]*dataplane.Frontend{&first}, sp.Frontends[1:]...)
	return &next
}

// snapshotOf is what a rig's node must forward.
func snapshotOf(t testing.TB, sps ...*dataplane.ServicePort) *dataplane.Snapshot {
	t.Helper()
	b := dataplane.Empty().Edit()
	node := netip.MustParseAddr("192.168.77.10")
	b.SetNode(&dataplane.Node{
		PrimaryIPs: []netip.Addr{node}, Addresses: []netip.Addr{node}, NodePortAddrs: []netip.Addr{node}, Mark: 1 << 14,
	})
	return edited(t, b, sps...)
}

// edited is the next snapshot, with more Services or other versions of them.
func edited(t testing.TB, b *dataplane.Builder, sps ...*dataplane.ServicePort) *dataplane.Snapshot {
	t.Helper()
	for _, sp := range sps {
		b.Put(sp)
	}
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onMemory is a plane whose listeners are on a rig's node, and whose rules are
// in memory.
func onMemory(t testing.TB) *site {
	t.Helper()
	s := &site{TB: t, Rig: rig.New(t, rig.Options{}), family: dataplane.IPv4, now: time.Unix(1000, 0)}
	s.reopen(t, netfiltertest.New(s.family))
	t.Cleanup(s.close)
	return s
}

// reopen is another process's plane on the same kernel.
func (s *site) reopen(t testing.TB, k netfilter.Kernel) {
	t.Helper()
	s.plane = newPlane(s.family, k, relay.Config{}, new(atomic.Uint32))
}

// rulesIn counts the rules that a kernel holds in chains of ours.
func rulesIn(t testing.TB, k netfilter.Kernel) int {
	t.Helper()
	n := 0
	for _, table := range netfilter.Tables() {
		err := k.Save(t.Context(), []netfilter.Table{table}, func(_ netfilter.Table, c netfilter.Chain) error {
			n += len(c.Rules)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// Cost in rules, by number of Services: a change rewrites the buckets that it
// concerns, and translates nothing else, however many Services there are.
// Proves kubernetes#139513.
func TestCost(t *testing.T) {
	for _, c := range []struct{ services, rules, change, endpoints int }{
		{10, 153, 4, 1},
		{100, 984, 4, 1},
		{1000, 6352, 10, 1},
	} {
		s := onMemory(t)
		sps := many(c.services)
		want := snapshotOf(t, sps...)
		s.sync(want, false)
		if n := rulesIn(t, s.plane.program.Kernel); n > c.rules {
			t.Errorf("%d Services: %d rules, want at most %d", c.services, n, c.rules)
		}
		want = edited(t, want.Edit(), changed(sps[7]))
		// The old and the new rule's buckets, in nat, for both directions, and an
		// entry that comes and one that goes.
		if r := s.sync(want, false); r.Writes > c.change {
			t.Errorf("%d Services: another port of one writes %d, want at most %d", c.services, r.Writes, c.change)
		}
		next := *sps[7]
		next.Serving = []netip.AddrPort{next.Pools[0].Endpoints[0].Addr}
		want = edited(t, want.Edit(), changed(&next))
		if r := s.sync(want, false); r.Writes != c.endpoints {
			t.Errorf("%d Services: other endpoints of one write %d, want %d", c.services, r.Writes, c.endpoints)
		}
	}
}

// Proves kubernetes#3760.
func TestNamesFitAndDiffer(t *testing.T) {
	n := dataplane.ServicePortName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 15), Protocol: dataplane.SCTP}
	other := n
	other.Protocol = dataplane.TCP
	key := dataplane.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: dataplane.TCP}
	names := map[string]bool{}
	all := []string{
		poolKey{n, dataplane.Cluster}.chain(), poolKey{n, dataplane.Local}.chain(), poolKey{other, dataplane.Cluster}.chain(),
		sourcesChain(n, key), sourcesChain(other, key), chainGuard, chainReject,
	}
	frame := newFrame(&dataplane.Node{}, dataplane.IPv4)
	for _, id := range frame.Roots {
		if !slices.Contains(all, id.Name) {
			all = append(all, id.Name)
		}
	}
	for id, buckets := range layout(dataplane.IPv4).Buckets {
		for _, b := range buckets {
			if id.Table == netfilter.NAT {
				all = append(all, b.Chain)
			}
		}
	}
	for _, name := range all {
		if len(name) > 28 || names[name] || !ownsChain(netfilter.NAT, name) || ownsChain(netfilter.Mangle, name) {
			t.Errorf("chain %s is too long, doubled or not ours", name)
		}
		names[name] = true
	}
	for _, f := range dataplane.Families() {
		for _, s := range allSets() {
			if name := s.name(f); len(name) > 31 || names[name] || !ownsSet(f, name) {
				t.Errorf("set %s is too long, doubled or not ours", name)
			}
			names[s.name(f)] = true
		}
	}
	for _, name := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-FIREWALL", "KUBE-MARK-DROP", "KUBE-SVC-ABC", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} {
		if ownsAnywhere(name) {
			t.Errorf("chain %s is taken for ours", name)
		}
	}
}

// A bucket holds what its name says: the same name is given to a frontend and to
// the jump that leads there.
func TestBucketsAreFound(t *testing.T) {
	for _, f := range dataplane.Families() {
		for root, buckets := range layout(f).Buckets {
			for _, b := range buckets {
				if _, known := findBucket(root, b, f); !known {
					t.Errorf("%s of %s: no frontend has it", b.Chain, root)
				}
			}
		}
	}
}

// findBucket is a frontend's address or port that has a bucket.
func findBucket(root program.ChainID, b program.Bucket, f dataplane.Family) (string, bool) {
	if b.Jump.DestPort.Last > 0 {
		prefix := bucketsNodePort
		if root.Name == chainNodePortHost {
			prefix = bucketsNodePortHost
		}
		name := program.PortBucket(prefix, b.Jump.Protocol.Number, b.Jump.DestPort.Last)
		return name, name == b.Chain
	}
	name := program.AddrBucket(root.Name, b.Jump.Destination.Addr)
	return name, name == b.Chain && dataplane.FamilyOf(b.Jump.Destination.Addr) == f
}
