package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Open opens a mode's plane; see [dataplane.Mode].
type Open func(context.Context, dataplane.Family) (dataplane.Plane, error)

// bed is a rig whose node runs the planes of a mode.
type bed struct {
	t      rig.TB
	cfg    Config
	rig    *rig.Rig
	state  State
	want   *dataplane.Snapshot
	planes map[dataplane.Family]dataplane.Plane
	held   []held
	// now is when the state became the wanted one. Syncs that follow at once have
	// the same time: what drains goes on draining.
	now time.Time
	// watch sees what reaches the other node and its pod.
	watch *rig.Watch
	// lastPort counts flows that have a source port of their own.
	lastPort atomic.Uint32
	// orphaned: no process of a mode without KeepFlows lives, so flows that it
	// let through may be refused or lost.
	orphaned bool
}

// newBed builds a rig for states with the given Detect, with what others have on
// a node already, and opens the planes.
func newBed(t rig.TB, cfg Config, state State) *bed {
	t.Helper()
	b := &bed{t: t, cfg: cfg, rig: rig.New(t, state.RigOptions()), want: dataplane.Empty()}
	Serve(t, b.rig)
	if err := addForeign(t.Context(), b.rig.Node, cfg); err != nil {
		t.Fatalf("%v", err)
	}
	b.watch = b.rig.Node2.Watch(t)
	b.open(cfg.Mode.Open)
	t.Cleanup(b.close) // listeners of a plane would keep the node's namespace
	return b
}

func (b *bed) open(open Open) {
	b.t.Helper()
	b.planes = make(map[dataplane.Family]dataplane.Plane)
	for _, f := range b.cfg.families() {
		err := b.inNode(func() (err error) {
			b.planes[f], err = open(b.t.Context(), f)
			return err
		})
		if err != nil {
			b.t.Fatalf("open %s for %s: %v", b.cfg.Mode.Name, f, err)
		}
	}
}

// freshPort is a source port that no flow has had, unless there were very many. The
// kernel chooses others for those that ask for none.
func (b *bed) freshPort() uint16 {
	const first, count = 10000, 20000
	return uint16(first + b.lastPort.Add(1)%count)
}

// inNode runs f where the planes are.
func (b *bed) inNode(f func() error) error { return b.rig.Node.Do(f) }

func (b *bed) close() {
	b.t.Helper()
	for f, p := range b.planes {
		if err := b.inNode(p.Close); err != nil {
			b.t.Fatalf("close %s: %v", f, err)
		}
	}
	b.planes = nil
}

// aim makes a state the one that is wanted.
func (b *bed) aim(s State) {
	b.t.Helper()
	want, err := s.Snapshot(b.want)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.state, b.want, b.now = s, want, time.Now()
}

// sync brings every plane to the wanted state.
func (b *bed) sync(distrust bool) (map[dataplane.Family]dataplane.Report, error) {
	reports := make(map[dataplane.Family]dataplane.Report)
	var errs []error
	for _, f := range b.cfg.families() {
		err := b.inNode(func() (err error) {
			reports[f], err = b.planes[f].Sync(b.t.Context(), dataplane.SyncRequest{Now: b.now, Want: b.want, Distrust: distrust})
			return err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f, err))
		}
	}
	return reports, errors.Join(errs...)
}

// mustSync is sync for kernels that have no reason to refuse.
func (b *bed) mustSync(s State) {
	b.t.Helper()
	b.aim(s)
	reports, err := b.sync(false)
	if err != nil {
		b.fail("sync: %v", err)
	}
	for f, r := range reports {
		for _, failed := range r.Failed {
			b.fail("sync %s: %s could not be programmed: %v", f, failed.Name, failed.Err)
		}
	}
}

// audit lists how the kernel differs from the wanted state.
func (b *bed) audit() ([]dataplane.Difference, error) {
	var all []dataplane.Difference
	for _, f := range b.cfg.families() {
		err := b.inNode(func() error {
			found, err := b.planes[f].Audit(b.t.Context(), b.want)
			all = append(all, found...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("audit %s: %w", f, err)
		}
	}
	return all, nil
}

// explain asks the plane of a shot's family what the kernel does with it.
func (b *bed) explain(s Shot) (e dataplane.Explanation, err error) {
	err = b.inNode(func() (err error) {
		e, err = b.planes[dataplane.FamilyOf(s.Flow.Dst.Addr())].Explain(b.t.Context(), s.Flow)
		return err
	})
	return e, err
}

// fail ends the test with the state that it failed with, as a scenario.
func (b *bed) fail(format string, args ...any) {
	b.t.Helper()
	story := fmt.Sprintf(format, args...)
	if err := saveFailure(b.t.Name(), story, b.state); err != nil {
		b.t.Errorf("%v", err)
	}
	b.t.Fatalf("%s\nwith\n%s", story, b.state)
}
