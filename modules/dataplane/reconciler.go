package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// NamedPlane is a plane of a Reconciler.
type NamedPlane struct {
	Name   string // unique, for logs and metrics: "iptables IPv4"
	Family Family
	Plane  Plane
}

// ReconcilerConfig configures a Reconciler. Zero durations take the defaults.
type ReconcilerConfig struct {
	Planes []NamedPlane
	Log    *slog.Logger // nil discards
	// Settle is how long a change waits for more of them, each of which
	// restarts the wait up to ten times Settle in all. Default 10 ms.
	Settle time.Duration
	// MinPeriod is the time from the start of one Sync to the start of the
	// next that a change asks for; after a quiet time two may follow at once
	// (kubernetes#138073). Default 1 s.
	MinPeriod time.Duration
	// Resync is how often a plane compares with the kernel itself. Default 30 s.
	Resync time.Duration
	// MinBackoff and MaxBackoff bound the wait before a failed Sync is
	// repeated; it doubles each time. Defaults 1 s and Resync.
	MinBackoff, MaxBackoff time.Duration
	// StopGrace is how long a running Sync may go on after Run was told to
	// stop, so that it need not leave half a change behind. Default 10 s.
	StopGrace time.Duration
	// OnSync is called after each Sync from the Reconciler's goroutine.
	OnSync func(SyncResult)
}

// SyncResult is what became of one Sync of one plane.
type SyncResult struct {
	Plane    NamedPlane
	Want     *Snapshot
	Report   Report
	Err      error
	Start    time.Time
	Duration time.Duration
	Distrust bool
	// Queued is when the oldest change that this Sync was to apply was
	// accepted; zero if there was none. A failed Sync keeps it for the next.
	Queued time.Time
	// Triggers are the stamps of the endpoint changes that are now applied.
	Triggers []time.Time
}

// A Reconciler brings planes to the newest snapshot and keeps them there.
//
//  1. A plane is only ever asked for the newest snapshot; those in between may
//     be skipped.
//  2. What a failed Sync was to do is not forgotten: it is repeated after a
//     back-off, which no event shortens.
//  3. A plane that fails does not hold up the others.
//  4. At least every Resync a plane is told to distrust what it remembers.
//  5. Only durations on the monotonic clock decide when something happens
//     (kubernetes#54130).
//
// Everything that touches a plane runs in the goroutine of Run.
type Reconciler struct {
	cfg   ReconcilerConfig
	lanes []*lane
	calls chan func(context.Context)
	wake  chan struct{}
	done  chan struct{}

	mu       sync.Mutex
	inbox    *Snapshot // published and not yet taken by Run
	since    time.Time // oldest acceptance among the snapshots of the inbox
	triggers []time.Time
	resync   bool
}

// ErrStopped is returned by calls to a Reconciler whose Run has ended.
var ErrStopped = errors.New("the reconciler has stopped")

// NewReconciler returns a Reconciler; Run starts it.
func NewReconciler(cfg ReconcilerConfig) *Reconciler {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.Settle, 10*time.Millisecond)
	def(&cfg.MinPeriod, time.Second)
	def(&cfg.Resync, 30*time.Second)
	def(&cfg.MinBackoff, time.Second)
	def(&cfg.MaxBackoff, cfg.Resync)
	def(&cfg.StopGrace, 10*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Reconciler{
		cfg:   cfg,
		calls: make(chan func(context.Context)),
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	for _, p := range cfg.Planes {
		r.lanes = append(r.lanes, &lane{plane: p, cfg: &r.cfg})
	}
	return r
}

// Publish hands over a newer snapshot. It does not wait.
func (r *Reconciler) Publish(s *Snapshot) {
	since := s.Since()
	if since.IsZero() {
		since = time.Now()
	}
	r.mu.Lock()
	r.inbox = s
	r.since = older(r.since, since)
	r.triggers = append(r.triggers, s.Triggers()...)
	r.mu.Unlock()
	r.nudge()
}

// Resync asks every plane to compare with the kernel soon.
func (r *Reconciler) Resync() {
	r.mu.Lock()
	r.resync = true
	r.mu.Unlock()
	r.nudge()
}

func (r *Reconciler) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Unapplied returns when the oldest change was accepted that some plane has
// not yet confirmed; false if all is applied.
func (r *Reconciler) Unapplied() (time.Time, bool) {
	return r.unapplied(func(*lane) bool { return true })
}

// UnappliedIn is Unapplied for the planes of one family.
func (r *Reconciler) UnappliedIn(f Family) (time.Time, bool) {
	return r.unapplied(func(l *lane) bool { return l.plane.Family == f })
}

// unapplied counts what was published and not yet taken for all lanes: whom a
// change concerns, they find out themselves.
func (r *Reconciler) unapplied(counts func(*lane) bool) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var t time.Time
	for _, l := range r.lanes {
		if counts(l) {
			t = older(older(t, l.queued), r.since)
		}
	}
	return t, !t.IsZero()
}

// Run works until the context ends. It may be called once.
func (r *Reconciler) Run(ctx context.Context) {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r.take(time.Now())
		for _, l := range r.lanes {
			if at, ok := l.due(); ok && !at.After(time.Now()) {
				r.sync(ctx, l)
			}
			if ctx.Err() != nil {
				return
			}
		}
		timer.Reset(r.sleep(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		case call := <-r.calls:
			call(ctx)
		}
	}
}

// take moves what was published to the lanes.
func (r *Reconciler) take(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lanes {
		if r.inbox != nil {
			l.give(now, r.inbox, r.since, r.triggers)
		}
		if r.resync {
			l.nextResync = now
		}
	}
	r.inbox, r.since, r.triggers, r.resync = nil, time.Time{}, nil, false
}

func (r *Reconciler) sleep(now time.Time) time.Duration {
	wait := time.Hour
	for _, l := range r.lanes {
		if at, ok := l.due(); ok {
			wait = min(wait, at.Sub(now))
		}
	}
	return max(wait, 0)
}

func (r *Reconciler) sync(ctx context.Context, l *lane) SyncResult {
	ctx, cancel := withGrace(ctx, r.cfg.StopGrace)
	defer cancel()
	res := SyncResult{Plane: l.plane, Want: l.want, Start: time.Now(), Queued: l.queued}
	res.Distrust = l.distrusts(res.Start)
	l.started(res.Start)
	res.Report, res.Err = l.plane.Plane.Sync(ctx, SyncRequest{Now: res.Start, Want: l.want, Distrust: res.Distrust})
	end := time.Now()
	res.Duration = end.Sub(res.Start)
	r.mu.Lock()
	if res.Err != nil {
		l.failed(end)
	} else {
		res.Triggers = l.succeeded(end, res)
	}
	r.mu.Unlock()
	r.log(res, l)
	if r.cfg.OnSync != nil {
		r.cfg.OnSync(res)
	}
	return res
}

func (r *Reconciler) log(res SyncResult, l *lane) {
	log := r.cfg.Log.With("plane", res.Plane.Name, "revision", res.Want.Revision())
	if res.Err != nil {
		log.Error("Sync failed", "err", res.Err, "failures", l.failures, "retryIn", time.Until(l.notBefore).Round(time.Millisecond))
		return
	}
	log.Debug("Synced", "writes", res.Report.Writes, "full", res.Report.Full, "duration", res.Duration)
	logSome(res.Report.Failed, func(f Failure) {
		log.Error("Service port could not be programmed", "servicePort", f.Name.String(), "err", f.Err)
	}, func(more int) { log.Error("More service ports could not be programmed", "count", more) })
	logSome(res.Report.Repaired, func(d Difference) {
		log.Warn("Repaired what somebody else changed", "difference", d.String())
	}, func(more int) { log.Warn("Repaired more of what somebody else changed", "count", more) })
	for _, w := range res.Report.Warnings {
		log.Warn("Plane warns", "warning", w)
	}
}

// maxLogged is how many lines of a kind one Sync may log: a broken node must
// not fill its disk (kubernetes#48052).
const maxLogged = 20

func logSome[T any](all []T, one func(T), rest func(more int)) {
	for _, x := range all[:min(len(all), maxLogged)] {
		one(x)
	}
	if more := len(all) - maxLogged; more > 0 {
		rest(more)
	}
}

// Repair has every plane compare with the kernel itself and mend it at once,
// whatever it waits for, and returns what became of that. Planes that have not
// been asked for a snapshot yet are left out.
func (r *Reconciler) Repair(ctx context.Context) ([]SyncResult, error) {
	var results []SyncResult
	err := r.call(ctx, func(ctx context.Context) {
		r.take(time.Now())
		for _, l := range r.lanes {
			if l.want != nil {
				l.nextResync = time.Time{}
				results = append(results, r.sync(ctx, l))
			}
		}
	})
	return results, err
}

// PlaneAudit is the audit of one plane.
type PlaneAudit struct {
	Plane       string
	Differences []Difference
	Err         error
}

// Audit compares every plane's kernel state with the snapshot that it was last
// asked for. Planes that have not been asked for one yet are left out.
func (r *Reconciler) Audit(ctx context.Context) ([]PlaneAudit, error) {
	var audits []PlaneAudit
	err := r.call(ctx, func(ctx context.Context) {
		for _, l := range r.lanes {
			if l.want == nil {
				continue
			}
			d, err := l.plane.Plane.Audit(ctx, l.want)
			audits = append(audits, PlaneAudit{l.plane.Name, d, err})
		}
	})
	return audits, err
}

// PlaneExplanation is what one plane does with a flow.
type PlaneExplanation struct {
	Plane       string
	Verdict     Verdict // what the snapshot that the plane was last asked for says
	Explanation Explanation
	Err         error
}

// Explain follows a flow through the planes of its family.
func (r *Reconciler) Explain(ctx context.Context, f Flow) ([]PlaneExplanation, error) {
	var es []PlaneExplanation
	err := r.call(ctx, func(ctx context.Context) {
		for _, l := range r.lanes {
			if l.want == nil || l.plane.Family != FamilyOf(f.Dst.Addr()) {
				continue
			}
			e, err := l.plane.Plane.Explain(ctx, f)
			es = append(es, PlaneExplanation{l.plane.Name, l.want.Decide(f), e, err})
		}
	})
	return es, err
}

// call runs f in the goroutine of Run, with a context that ends with either.
func (r *Reconciler) call(ctx context.Context, f func(context.Context)) error {
	finished := make(chan struct{})
	wrapped := func(run context.Context) {
		defer close(finished)
		both, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(run, cancel)()
		f(both)
	}
	select {
	case r.calls <- wrapped:
		<-finished
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		return ErrStopped
	}
}

// withGrace returns a context that ends a while after its parent does.
func withGrace(parent context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); cancel() }
}

// older returns the earlier of two times, of which zero ones do not count.
func older(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
