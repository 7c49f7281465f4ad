package ipvs

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

var errInterrupted = errors.New("interrupted")

// Wherever a Sync ends early, what is in the kernel by then lets each flow
// through as the old or the new snapshot does, and the next Sync completes it,
// also that of another process.
// Proves S7.1, S9.3.
func TestInterruptedAnywhere(t *testing.T) {
	for _, f := range dataplane.Families() {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m, old := newMemory(f, Options{}), dataplane.Empty()
				state := dataplanetest.States().Draw(t, "state")
				running := rapid.Bool().Draw(t, "running")
				if running {
					old = snapshotOf(t, state, old)
					m.sync(t, old, false)
					state = dataplanetest.Successor(state).Draw(t, "next state")
				}
				want := snapshotOf(t, state, old)
				interrupted := m.interrupt(t, want, rapid.IntRange(0, 25).Draw(t, "calls"))
				if interrupted && (!running || reflect.DeepEqual(old.Node(), want.Node())) {
					m.misleads(t, state, old, want)
				}
				if rapid.Bool().Draw(t, "another process") {
					m.open(f, Options{})
				}
				m.sync(t, want, false)
				m.settled(t, want)
			})
		})
	}
}

func snapshotOf(t rig.TB, s dataplanetest.State, old *dataplane.Snapshot) *dataplane.Snapshot {
	t.Helper()
	want, err := s.Snapshot(old)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return want
}

// interrupt lets a Sync make some calls, and tells whether it wanted more.
func (m *memory) interrupt(t rig.TB, want *dataplane.Snapshot, calls int) (interrupted bool) {
	t.Helper()
	fail := func() error {
		if calls == 0 {
			return errInterrupted
		}
		calls--
		return nil
	}
	m.Plane.local = func() (func(netip.Addr) bool, error) { return want.Node().Holds, nil }
	m.beFaulty(fail)
	_, err := m.Sync(t.Context(), dataplane.SyncRequest{Now: m.now, Want: want})
	m.Plane.netfilter, m.Plane.servers, m.Plane.device = m.rules, m.ipvs, m.device
	if err != nil && !errors.Is(err, errInterrupted) {
		t.Fatalf("the error of an interrupted sync does not wrap its cause: %v", err)
	}
	return err != nil
}

// misleads checks what Explain reads against both snapshots: nothing is let
// through that neither lets through, and nothing stopped that both let through.
func (m *memory) misleads(t rig.TB, state dataplanetest.State, old, want *dataplane.Snapshot) {
	t.Helper()
	w := m.walker(t)
	// Addresses that are neither a Service's nor the node's are nobody's here.
	stops := func(a dataplane.Action, f dataplane.Flow) bool {
		return a != dataplane.Forward && (a != dataplane.NotOurs || !w.IsLocal(f.Dst.Addr()))
	}
	for _, s := range append(dataplanetest.Shots(state, want), dataplanetest.Shots(state, old)...) {
		if dataplane.FamilyOf(s.Flow.Dst.Addr()) != m.family {
			continue
		}
		before, after := old.Decide(s.Flow), want.Decide(s.Flow)
		mayStop := stops(before.Action, s.Flow) || stops(after.Action, s.Flow)
		for _, end := range follow(t, w, netfilter.PacketOf(s.Flow)) {
			o := end.Explain()
			if dst := s.Flow.Dst.Addr(); o.Action == dataplane.NotOurs && w.IsLocal(dst) && !want.Node().Holds(dst) {
				t.Fatalf("%s: the node itself would answer\n%+v\nwith\n%s", s, o, state)
			}
			first, second := before.Disagreement(o), after.Disagreement(o)
			if first != "" && second != "" && !(mayStop && stops(o.Action, s.Flow)) && !dataplanetest.Rerouted(before, after) {
				t.Fatalf("%s: should %s or %s, but: %s; %s\n%+v\nwith\n%s", s, before, after, first, second, o, state)
			}
		}
	}
}
