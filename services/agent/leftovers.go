package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// leftoversRetry is how long to wait before what could not be removed is tried
// again.
const leftoversRetry = 30 * time.Second

// leftovers is what the modes that are not in use have in the kernel: those
// that this node ran before, of Portway or of kube-proxy. What kube-proxy had
// in the mode that is in use is no leftover: the plane takes it over.
//
// Until the first good Sync of a family it is what makes Services work, so
// nothing of it is touched before. From then on both sets of rules stand, of
// which each sends a new flow to a right endpoint, whichever comes first; so
// its removal leaves no moment without a way.
type leftovers struct {
	modes []dataplane.Mode // those not in use
	log   *slog.Logger
	ready map[dataplane.Family]*signal
}

// signal happens once.
type signal struct {
	once sync.Once
	done chan struct{}
}

func newLeftovers(modes []dataplane.Mode, inUse choice, log *slog.Logger) *leftovers {
	l := &leftovers{log: log, ready: make(map[dataplane.Family]*signal)}
	for _, m := range modes {
		if m.Name != inUse.mode.Name {
			l.modes = append(l.modes, m)
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
	left := l.modes
	for {
		left = l.remove(ctx, f, left)
		if len(left) == 0 {
			l.log.Info("Nothing is left of other proxy modes", "family", f.String())
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(leftoversRetry):
		}
	}
}

// remove returns the modes of which something is left.
func (l *leftovers) remove(ctx context.Context, f dataplane.Family, modes []dataplane.Mode) []dataplane.Mode {
	var left []dataplane.Mode
	for _, m := range modes {
		err := m.Cleanup(ctx, f)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return modes
		}
		l.log.Error("What another proxy mode left in the kernel could not be removed; trying again",
			"mode", m.Name, "family", f.String(), "err", err, "in", leftoversRetry)
		left = append(left, m)
	}
	return left
}
