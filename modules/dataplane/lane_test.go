package dataplane

import (
	"testing"
	"time"
	"unsafe"
)

// setBack returns the same moment as a wall clock shows it that was set back
// since: the seconds of the wall clock change, the monotonic clock does not. Only
// the runtime can make such a time in another way. (The wall clock's seconds
// begin at bit 30 of the first word of a time that has both.)
func setBack(t time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall -= uint64(by/time.Second) << 30
	return t
}

// kubernetes#54130: somebody sets the clock back by hours, and nothing waits for
// it: not a retry, not a change, not a resync.
func TestLaneIgnoresTheWallClock(t *testing.T) {
	const hours = 3 * time.Hour
	start := time.Now()
	if back := setBack(start, hours); back.Sub(start) != 0 || start.Unix()-back.Unix() != int64(hours/time.Second) {
		t.Fatalf("%s set back by %s is %s", start, hours, back)
	}
	cfg := &ReconcilerConfig{Settle: time.Second, MinPeriod: time.Second, MinBackoff: time.Second, MaxBackoff: time.Minute, Resync: time.Minute}
	wantDue := func(what string, l *lane, after time.Duration) {
		t.Helper()
		at, ok := l.due()
		if now := setBack(start.Add(after), hours); !ok || at.Sub(now) != 0 {
			t.Errorf("%s: due %s after a clock that was set back shows %s", what, at.Sub(now), now)
		}
	}
	l := &lane{cfg: cfg}
	l.give(start, Empty(), start, nil)
	wantDue("a change that settles", l, time.Second)
	l.started(start)
	l.failed(start)
	wantDue("a retry", l, time.Second)
	l.started(setBack(start.Add(time.Second), hours))
	l.succeeded(setBack(start.Add(time.Second), hours), SyncResult{Distrust: true})
	wantDue("a resync", l, time.Second+time.Minute)
	if !l.distrusts(setBack(start.Add(time.Second+time.Minute), hours)) {
		t.Error("the resync trusts")
	}
}
