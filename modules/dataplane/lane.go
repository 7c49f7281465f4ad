package dataplane

import "time"

// A lane is what a Reconciler knows of one plane: what it is to apply, and
// when it may be called next.
type lane struct {
	plane NamedPlane
	cfg   *ReconcilerConfig

	want     *Snapshot
	queued   time.Time   // acceptance of the oldest unconfirmed change; under Reconciler.mu
	triggers []time.Time // stamps of unconfirmed changes

	dirty       bool      // want has not been tried yet
	firstChange time.Time // of those not tried yet
	lastChange  time.Time

	failures   int
	notBefore  time.Time // end of the back-off
	nextResync time.Time
	again      time.Time // the plane's own wish
	paidUntil  time.Time // each Sync pays one MinPeriod, one of which may be in advance
}

// settleBound is how many times Settle a stream of changes is waited for.
const settleBound = 10

// give takes a newer snapshot.
func (l *lane) give(now time.Time, s *Snapshot, since time.Time, triggers []time.Time) {
	l.want = s
	l.queued = older(l.queued, since)
	l.triggers = append(l.triggers, triggers...)
	if !l.dirty {
		l.dirty, l.firstChange = true, now
	}
	l.lastChange = now
}

// due returns when the plane is to be called next; false if there is nothing
// to ask of it.
func (l *lane) due() (time.Time, bool) {
	if l.want == nil {
		return time.Time{}, false
	}
	at := l.nextResync
	switch {
	case l.failures > 0:
		at = l.notBefore
	case l.dirty && at.IsZero(): // the first Sync settles like any other
		at = l.mayStart()
	case l.dirty:
		at = earlier(at, l.mayStart())
	}
	if !l.again.IsZero() {
		at = earlier(at, l.again)
	}
	return later(at, l.notBefore), true
}

// mayStart is when a change may be applied: it has settled, and MinPeriod is
// kept on average with a burst of two.
func (l *lane) mayStart() time.Time {
	settled := earlier(l.lastChange.Add(l.cfg.Settle), l.firstChange.Add(settleBound*l.cfg.Settle))
	return later(settled, l.paidUntil.Add(-l.cfg.MinPeriod))
}

// distrusts tells whether a Sync that starts now is to read the kernel.
func (l *lane) distrusts(now time.Time) bool { return !l.nextResync.After(now) }

// started records a Sync. Its outcome is told to failed or succeeded.
func (l *lane) started(now time.Time) {
	l.paidUntil = later(l.paidUntil, now).Add(l.cfg.MinPeriod)
	l.dirty, l.again = false, time.Time{}
}

// failed sets the back-off: MinBackoff, doubled with each failure in a row, up
// to MaxBackoff.
func (l *lane) failed(now time.Time) {
	wait := l.cfg.MaxBackoff
	if l.failures < 16 {
		wait = min(wait, l.cfg.MinBackoff<<l.failures)
	}
	l.failures++
	l.notBefore = now.Add(wait)
}

// succeeded forgets what was confirmed and returns the stamps of it.
func (l *lane) succeeded(now time.Time, res SyncResult) []time.Time {
	t := l.triggers
	l.queued, l.triggers = time.Time{}, nil
	l.failures, l.notBefore = 0, time.Time{}
	l.again = res.Report.Again
	if res.Distrust || res.Report.Full {
		l.nextResync = now.Add(l.cfg.Resync)
	}
	return t
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
