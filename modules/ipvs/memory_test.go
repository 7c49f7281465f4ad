package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

// memory is a kernel in memory with a plane on it.
type memory struct {
	*Plane
	rules   *netfiltertest.Kernel
	ipvs    *kerneltest.Servers
	device  *kerneltest.Device
	sysctls kerneltest.Sysctls
	now     time.Time
}

func newMemory(f dataplane.Family, o Options) *memory {
	m := &memory{
		rules: netfiltertest.New(f), ipvs: kerneltest.NewServers(), device: kerneltest.NewDevice(),
		sysctls: kerneltest.NewSysctls(), now: time.Unix(1_800_000_000, 0),
	}
	m.open(f, o)
	return m
}

// open starts another plane on the same kernel.
func (m *memory) open(f dataplane.Family, o Options) {
	m.Plane = newPlane(f, o, m.rules, m.ipvs, m.device)
	m.Plane.sysctls = m.sysctls
	m.Plane.local = func() (func(netip.Addr) bool, error) { return func(netip.Addr) bool { return false }, nil }
}

// sync syncs and wants it to work.
func (m *memory) sync(t rig.TB, want *dataplane.Snapshot, distrust bool) dataplane.Report {
	t.Helper()
	m.Plane.local = func() (func(netip.Addr) bool, error) { return want.Node().Holds, nil }
	r, err := m.Sync(t.Context(), dataplane.SyncRequest{Now: m.now, Want: want, Distrust: distrust})
	if err != nil {
		t.Fatalf("sync: %v", err)
	}
	for _, f := range r.Failed {
		t.Fatalf("sync: %s: %v", f.Name, f.Err)
	}
	return r
}

// settled wants nothing to be left to do.
func (m *memory) settled(t rig.TB, want *dataplane.Snapshot) {
	t.Helper()
	found, err := m.Audit(t.Context(), want)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, d := range found {
		t.Errorf("audit: %s", d)
	}
	for _, distrust := range []bool{false, true} {
		if r := m.sync(t, want, distrust); r.Writes != 0 || len(r.Repaired) != 0 {
			t.Errorf("a second sync, distrust %t, writes %d and repairs %v", distrust, r.Writes, r.Repaired)
		}
	}
}

// What the rules, sets and virtual servers mean is what is decided, whatever
// came before.
func TestRulesMeanWhatIsDecided(t *testing.T) {
	for _, f := range dataplane.Families() {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				state := dataplanetest.States().Draw(t, "state")
				m, want := newMemory(f, Options{}), dataplane.Empty()
				for range rapid.IntRange(1, 3).Draw(t, "steps") {
					want = snapshotOf(t, state, want)
					m.sync(t, want, rapid.Bool().Draw(t, "distrust"))
					m.settled(t, want)
					m.agrees(t, state, want)
					state = dataplanetest.Successor(state).Draw(t, "next state")
				}
			})
		})
	}
}

// walker reads the kernel once, to follow many packets as Explain does one.
func (m *memory) walker(t rig.TB) *netfilter.Walker {
	t.Helper()
	w, err := netfilter.ReadWalker(t.Context(), m.rules)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if w.IsLocal, err = m.isLocal(t.Context()); err != nil {
		t.Fatalf("%v", err)
	}
	b := balancer{ctx: t.Context(), servers: m.ipvs, seen: make(map[kernel.Key]kernel.VirtualServer)}
	w.Balance = b.balance
	return w
}

func follow(t rig.TB, w *netfilter.Walker, p netfilter.Packet) []netfilter.Outcome {
	t.Helper()
	all, err := w.Follow(p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return all
}

// agrees compares what Explain reads with what is decided, for all that is
// worth sending.
func (m *memory) agrees(t rig.TB, state dataplanetest.State, want *dataplane.Snapshot) {
	t.Helper()
	w := m.walker(t)
	for _, s := range dataplanetest.Shots(state, want) {
		if dataplane.FamilyOf(s.Flow.Dst.Addr()) != m.family {
			continue
		}
		var e dataplane.Explanation
		for _, o := range follow(t, w, netfilter.PacketOf(s.Flow)) {
			e.Outcomes = append(e.Outcomes, o.Explain())
		}
		if err := want.Decide(s.Flow).Agrees(e); err != nil {
			t.Fatalf("%s: %v\n%+v\nwith\n%s", s, err, e, state)
		}
	}
}
