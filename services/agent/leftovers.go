package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// leftoversRetry is how long to wait before what could not be removed, or was
// left to established connections, is looked at again.
const leftoversRetry = 30 * time.Second

// leftovers is what the modes that are not in use have in the kernel: those
// that this node ran before, of Portway or of kube-proxy. What kube-proxy had
// in the mode that is in use the plane takes over; only what it has no use for is
// a leftover.
//
// Until the first good Sync of a family it is what makes Services work, so
// nothing of it is touched before. From then on both sets of rules stand. The new
// ones come first, and what stands behind them sends a new flow to a right endpoint,
// too, or lets pass what is served: so its removal leaves no moment without a way.
// What established connections still pass through stays until they have ended, or
// their time is over.
type leftovers struct {
	all  []leftover
	log  *slog.Logger
	goOn func(mode string, f dataplane.Family, connections int)
	// looked is called when the first look at what a family has is over: the last
	// that a start does.
	looked func()
	ready  map[dataplane.Family]*signal
}

// leftover is what a mode has left.
type leftover struct {
	mode  dataplane.Mode
	inUse bool
}

// remove tells how many connections need what it leaves.
func (l leftover) remove(ctx context.Context, f dataplane.Family, age time.Duration) (connections int, err error) {
	if l.mode.Retire == nil {
		return 0, l.mode.Cleanup(ctx, f)
	}
	return l.mode.Retire(ctx, dataplane.Retirement{Family: f, Age: age, InUse: l.inUse})
}

// signal happens once.
type signal struct {
	once sync.Once
	done chan struct{}
}

// newLeftovers are those of all modes. goOn is told how many connections go on
// through what a mode left.
func newLeftovers(modes []dataplane.Mode, inUse choice, log *slog.Logger, goOn func(string, dataplane.Family, int)) *leftovers {
	l := &leftovers{log: log, goOn: goOn, looked: func() {}, ready: make(map[dataplane.Family]*signal)}
	for _, m := range modes {
		used := m.Name == inUse.mode.Name
		if !used || m.Retire != nil {
			l.all = append(l.all, leftover{m, used})
		}
	}
	for _, f := range inUse.families {
		l.ready[f] = &signal{done: make(chan struct{})}
	}
	return l
}

// synced notes a good Sync of a family.
func (l *leftovers) synced(f dataplane.Family) {
	if s := l.ready[f]; s != nil {
		s.once.Do(func() { close(s.done) })
	}
}

// run waits for the first good Sync of a family and removes what is left then,
// which takes seconds where there are 10,000 Services. It goes on until nothing
// is left, or the context ends.
func (l *leftovers) run(ctx context.Context, f dataplane.Family) {
	select {
	case <-ctx.Done():
		return
	case <-l.ready[f].done:
	}
	since := time.Now()
	left := l.remove(ctx, f, 0, l.all)
	l.looked()
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(leftoversRetry):
		}
		left = l.remove(ctx, f, time.Since(since), left)
	}
	l.log.Info("Nothing is left of other proxy modes", "family", f.String())
}

// remove returns those of which something is left.
func (l *leftovers) remove(ctx context.Context, f dataplane.Family, age time.Duration, all []leftover) []leftover {
	var left []leftover
	for _, one := range all {
		connections, err := one.remove(ctx, f, age)
		if ctx.Err() != nil {
			return all
		}
		if err == nil && one.mode.Retire != nil {
			l.goOn(one.mode.Name, f, connections)
		}
		switch {
		case err != nil:
			l.log.Error("What another proxy mode left in the kernel could not be removed; trying again",
				"mode", one.mode.Name, "family", f.String(), "err", err, "in", leftoversRetry)
		case connections > 0:
			l.log.Info("Connections go on through what another proxy mode left in the kernel, which stays for them",
				"mode", one.mode.Name, "family", f.String(), "connections", connections)
		default:
			continue
		}
		left = append(left, one)
	}
	return left
}
