package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// memoryPlane records what it is asked for and applies it, unless told to
// fail.
type memoryPlane struct {
	start    time.Time
	syncs    []planeCall
	applied  *Snapshot
	fail     func(call int) error
	takes    time.Duration // virtual time that a Sync needs
	again    time.Duration
	canceled bool
	report   Report // what a Sync reports besides
}

type planeCall struct {
	at       time.Duration
	revision uint64
	distrust bool
}

func (p *memoryPlane) Sync(ctx context.Context, r SyncRequest) (Report, error) {
	n := len(p.syncs)
	p.syncs = append(p.syncs, planeCall{time.Since(p.start), r.Want.Revision(), r.Distrust})
	if p.takes > 0 {
		select {
		case <-time.After(p.takes):
		case <-ctx.Done():
			p.canceled = true
			return Report{}, ctx.Err()
		}
	}
	if p.fail != nil {
		if err := p.fail(n); err != nil {
			return Report{}, err
		}
	}
	p.applied = r.Want
	rep := p.report
	rep.Full = r.Distrust
	if p.again > 0 {
		rep.Again = r.Now.Add(p.again)
		p.again = 0
	}
	return rep, nil
}

func (p *memoryPlane) Audit(_ context.Context, want *Snapshot) ([]Difference, error) {
	if p.applied == want {
		return nil, nil
	}
	return []Difference{{Object: "everything", Want: "it"}}, nil
}

func (p *memoryPlane) Explain(context.Context, Flow) (Explanation, error) {
	return Explanation{Outcomes: []Outcome{{Action: NotOurs, Probability: 1}}}, nil
}

func (p *memoryPlane) Close() error { return nil }

func (p *memoryPlane) times() []time.Duration {
	var ts []time.Duration
	for _, s := range p.syncs {
		ts = append(ts, s.at)
	}
	return ts
}

// running starts a Reconciler over the planes on a virtual clock and stops it
// at the end of the bubble.
func running(t *testing.T, cfg ReconcilerConfig, planes ...*memoryPlane) (*Reconciler, context.CancelFunc) {
	t.Helper()
	for i, p := range planes {
		p.start = time.Now()
		cfg.Planes = append(cfg.Planes, NamedPlane{Name: string(rune('a' + i)), Family: IPv4, Plane: p})
	}
	r := NewReconciler(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	go r.Run(ctx)
	return r, func() { cancel(); <-r.done }
}

// edited returns n snapshots, each one edit after the other.
func edited(t *testing.T, n int) []*Snapshot {
	t.Helper()
	var out []*Snapshot
	s := Empty()
	for range n {
		next, err := s.Edit().Build()
		if err != nil {
			t.Fatal(err)
		}
		out, s = append(out, next), next
	}
	return out
}

// pass lets virtual time go by: inside a bubble this waits for nothing real.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestReconcilerCoalescesABurstOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &memoryPlane{}
		r, stop := running(t, ReconcilerConfig{}, p)
		defer stop()
		for _, s := range edited(t, 50) {
			r.Publish(s)
		}
		pass(time.Second)
		if len(p.syncs) != 1 || p.syncs[0].revision != 50 || !p.syncs[0].distrust {
			t.Errorf("want one distrustful Sync of revision 50, got %+v", p.syncs)
		}
	})
}

func TestReconcilerBoundsTheSettling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &memoryPlane{}
		r, stop := running(t, ReconcilerConfig{}, p)
		defer stop()
		for _, s := range edited(t, 40) { // 40 x 5 ms, never quiet for Settle
			r.Publish(s)
			pass(5 * time.Millisecond)
		}
		if len(p.syncs) == 0 || p.syncs[0].at != 100*time.Millisecond {
			t.Errorf("the first Sync must come 100 ms after the first change, got %v", p.times())
		}
	})
}

// kubernetes#138073: what a minimum period means must be written down and hold.
func TestReconcilerKeepsMinPeriodWithABurstOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &memoryPlane{takes: 300 * time.Millisecond}
		r, stop := running(t, ReconcilerConfig{MinPeriod: time.Second}, p)
		defer stop()
		for _, s := range edited(t, 500) {
			r.Publish(s)
			pass(10 * time.Millisecond)
		}
		got := p.times()
		if len(got) < 5 {
			t.Fatalf("too few Syncs in 5 s: %v", got)
		}
		if gap := got[1] - got[0]; gap > 500*time.Millisecond {
			t.Errorf("the second Sync of a burst waited %v", gap)
		}
		for i := 2; i < len(got); i++ {
			if gap := got[i] - got[i-2]; gap < time.Second {
				t.Errorf("three Syncs within %v: %v", gap, got[i-2:i+1])
			}
		}
		if n := len(got); n > 7 {
			t.Errorf("%d Syncs in 5 s, want one a second and a burst of two", n)
		}
	})
}

func TestReconcilerRetriesWithABackoffThatEventsDoNotShorten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		p := &memoryPlane{fail: func(n int) error {
			if n < 4 {
				return boom
			}
			return nil
		}}
		r, stop := running(t, ReconcilerConfig{MinPeriod: time.Millisecond}, p)
		defer stop()
		for _, s := range edited(t, 2000) {
			r.Publish(s)
			pass(10 * time.Millisecond)
		}
		got := p.times()
		want := []time.Duration{1, 2, 4, 8}
		for i, w := range want {
			if gap := got[i+1] - got[i]; gap < w*time.Second || gap > w*time.Second+20*time.Millisecond {
				t.Errorf("wait %d is %v, want %v s", i, gap, int(w))
			}
		}
	})
}

// kubernetes#112604: a failed write must not lose what it was to do.
func TestReconcilerRemembersAFailedChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &memoryPlane{fail: func(n int) error {
			if n == 1 {
				return errors.New("once")
			}
			return nil
		}}
		var results []SyncResult
		r, stop := running(t, ReconcilerConfig{OnSync: func(s SyncResult) { results = append(results, s) }}, p)
		defer stop()
		ss := edited(t, 2)
		r.Publish(ss[0])
		pass(5 * time.Second)
		accepted, stamp := time.Now(), time.Now().Add(-time.Second)
		b := ss[1].Edit()
		b.Changed(accepted, stamp)
		last, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		r.Publish(last)
		pass(500 * time.Millisecond)
		if since, ok := r.Unapplied(); !ok || !since.Equal(accepted) {
			t.Errorf("unapplied since %v, %v; want %v: a failed Sync must not reset it", since, ok, accepted)
		}
		pass(5 * time.Second)
		if _, ok := r.Unapplied(); ok || p.applied != last {
			t.Error("the change was lost")
		}
		end := results[len(results)-1]
		if end.Err != nil || !end.Queued.Equal(accepted) || !slices.Equal(end.Triggers, []time.Time{stamp}) {
			t.Errorf("the Sync that made up for it reports %+v", end)
		}
	})
}

func TestReconcilerIsolatesAFailingPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := &memoryPlane{fail: func(int) error { return errors.New("always") }}
		good := &memoryPlane{}
		r, stop := running(t, ReconcilerConfig{Planes: []NamedPlane{{Name: "bad", Family: IPv6, Plane: bad}}}, good)
		defer stop()
		ss := edited(t, 20)
		for _, s := range ss {
			r.Publish(s)
			pass(3 * time.Second)
		}
		if good.applied != ss[len(ss)-1] {
			t.Error("the good plane is not at the newest snapshot")
		}
		if _, ok := r.Unapplied(); !ok {
			t.Error("the bad plane's change counts as applied")
		}
		if _, ok := r.UnappliedIn(IPv6); !ok {
			t.Error("the change counts as applied in the family of the bad plane")
		}
		if since, ok := r.UnappliedIn(IPv4); ok {
			t.Errorf("in the other family the change counts as unapplied since %v", since)
		}
	})
}

func TestReconcilerResyncsAndHonoursAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &memoryPlane{again: 7 * time.Second}
		r, stop := running(t, ReconcilerConfig{Resync: 30 * time.Second}, p)
		defer stop()
		r.Publish(edited(t, 1)[0])
		pass(61 * time.Second)
		want := []planeCall{
			{10 * time.Millisecond, 1, true},
			{7*time.Second + 10*time.Millisecond, 1, false},
			{30*time.Second + 10*time.Millisecond, 1, true},
			{60*time.Second + 10*time.Millisecond, 1, true},
		}
		if !slices.Equal(p.syncs, want) {
			t.Errorf("got %+v, want %+v", p.syncs, want)
		}
		r.Resync()
		pass(time.Millisecond)
		if n := len(p.syncs); n != 5 || !p.syncs[4].distrust {
			t.Errorf("Resync was not followed at once: %+v", p.syncs)
		}
	})
}

// Who is told to repair does not wait: not for the next resync, nor for the end
// of a back-off.
func TestReconcilerRepairsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &memoryPlane{}
		r, stop := running(t, ReconcilerConfig{MinBackoff: time.Minute, MaxBackoff: time.Minute}, p)
		defer stop()
		if results, err := r.Repair(t.Context()); err != nil || len(results) != 0 {
			t.Errorf("before there is anything to want: %+v, %v", results, err)
		}
		r.Publish(edited(t, 1)[0])
		pass(time.Second)
		p.fail = func(n int) error {
			if n == 1 {
				return errors.New("boom")
			}
			return nil
		}
		for _, failed := range []bool{true, false} {
			results, err := r.Repair(t.Context())
			if err != nil || len(results) != 1 || (results[0].Err != nil) != failed || !results[0].Distrust {
				t.Errorf("%+v, %v, want it to fail: %t", results, err, failed)
			}
		}
		pass(time.Second)
		if len(p.syncs) != 3 {
			t.Errorf("%d Syncs, want one and two more: %+v", len(p.syncs), p.syncs)
		}
	})
}

func TestReconcilerLetsARunningSyncFinishOnStop(t *testing.T) {
	for _, tt := range []struct {
		takes    time.Duration
		canceled bool
	}{{3 * time.Second, false}, {time.Hour, true}} {
		synctest.Test(t, func(t *testing.T) {
			p := &memoryPlane{takes: tt.takes}
			r, stop := running(t, ReconcilerConfig{StopGrace: 5 * time.Second}, p)
			r.Publish(edited(t, 1)[0])
			pass(time.Second)
			stop()
			if p.canceled != tt.canceled || (p.applied != nil) == tt.canceled {
				t.Errorf("a Sync of %v: canceled %v", tt.takes, p.canceled)
			}
			if _, err := r.Audit(t.Context()); !errors.Is(err, ErrStopped) {
				t.Errorf("Audit after the stop: %v", err)
			}
		})
	}
}

func TestReconcilerAuditAndExplainRunBetweenSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &memoryPlane{takes: time.Second}
		r, stop := running(t, ReconcilerConfig{}, p)
		defer stop()
		r.Publish(edited(t, 1)[0])
		pass(100 * time.Millisecond) // the Sync runs
		audits, err := r.Audit(t.Context())
		if err != nil || len(audits) != 1 || len(audits[0].Differences) != 0 {
			t.Errorf("audit %+v, %v", audits, err)
		}
		es, err := r.Explain(t.Context(), flow("UDP", "", "192.0.2.1:1", "192.0.2.2:2"))
		if err != nil || len(es) != 1 || es[0].Verdict.Agrees(es[0].Explanation) != nil {
			t.Errorf("explanations %+v, %v", es, err)
		}
		if es, _ := r.Explain(t.Context(), flow("UDP", "", "[2001:db8::1]:1", "[2001:db8::2]:2")); len(es) != 0 {
			t.Errorf("an IPv6 flow was followed through an IPv4 plane: %+v", es)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		p.takes = time.Minute
		r.Publish(edited(t, 3)[2])
		pass(time.Second)
		if _, err := r.Audit(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an Audit that cannot start in time: %v", err)
		}
	})
}

// kubernetes#48052: a failure that repeats must not fill the disk.
func TestReconcilerLogsAFewOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := &memoryPlane{report: Report{
			Failed:   make([]Failure, 10000),
			Repaired: make([]Difference, 10000),
			Warnings: []string{"the other back end"},
		}}
		r, stop := running(t, ReconcilerConfig{Log: slog.New(slog.NewTextHandler(&out, nil))}, p)
		r.Publish(edited(t, 1)[0])
		pass(time.Second)
		stop()
		lines := strings.Count(out.String(), "\n")
		if lines > 50 || strings.Count(out.String(), "count=9980") != 2 || !strings.Contains(out.String(), "the other back end") {
			t.Errorf("%d lines:\n%s", lines, out.String())
		}
	})
}
