package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Load asks the same question again and again while something happens.
type Load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	asked  int
	failed []error
}

// Asking is who asks what.
type Asking struct {
	From Place
	Question
}

// StartLoad has everyone ask, every tenth of a second, until Stop.
func StartLoad(ctx context.Context, all ...Asking) *Load {
	ctx, cancel := context.WithCancel(ctx)
	l := &Load{cancel: cancel}
	for _, a := range all {
		l.wg.Go(func() { l.run(ctx, a) })
	}
	return l
}

func (l *Load) run(ctx context.Context, a Asking) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := a.From.Ask(ctx, a.Question)
		if ctx.Err() != nil {
			return // ended in the middle of a question
		}
		l.mu.Lock()
		l.asked += a.tries()
		if err != nil {
			l.failed = append(l.failed, fmt.Errorf("%s: %w", time.Now().Format(time.TimeOnly), err))
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Asked is how many requests were made so far.
func (l *Load) Asked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// Stop ends the load and returns an error that tells of all requests that
// failed.
func (l *Load) Stop() error {
	l.cancel()
	l.wg.Wait()
	if l.asked == 0 {
		return errors.New("the load never asked anything")
	}
	return errors.Join(l.failed...)
}
