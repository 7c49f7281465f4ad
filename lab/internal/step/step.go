// Package step runs a procedure: a list of small named steps, with progress
// for the person who waits.
package step

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Step is one named part of a procedure. Run may call note to say what it is
// doing just now; the latest note is shown while the step takes long.
type Step struct {
	Name string
	Run  func(ctx context.Context, note func(string)) error
}

// heartbeat is how often a long step says that it is still at work.
const heartbeat = 15 * time.Second

// Run runs the steps in order and stops at the first error, which names its
// step.
func Run(ctx context.Context, out io.Writer, steps []Step) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", s.Name, context.Cause(ctx))
		}
		if err := run(ctx, out, s); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

// RunAll runs every step even if earlier ones fail, and returns all errors:
// for taking things down.
func RunAll(ctx context.Context, out io.Writer, steps []Step) error {
	var errs []error
	for _, s := range steps {
		if err := run(ctx, out, s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, out io.Writer, s Step) error {
	fmt.Fprintf(out, "==> %s\n", s.Name)
	start := time.Now()
	stop := beat(out, start)
	err := s.Run(ctx, stop.note)
	stop.end()
	if err != nil {
		return err
	}
	if took := time.Since(start); took >= time.Second {
		fmt.Fprintf(out, "    done in %s\n", took.Round(time.Second))
	}
	return nil
}

// ticker prints the latest note at every heartbeat until it ends.
type ticker struct {
	mu      sync.Mutex
	latest  string
	done    chan struct{}
	stopped chan struct{}
}

func beat(out io.Writer, start time.Time) *ticker {
	t := &ticker{done: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(t.stopped)
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-t.done:
				return
			case now := <-tick.C:
				fmt.Fprintf(out, "    %s %s\n", now.Sub(start).Round(time.Second), t.text())
			}
		}
	}()
	return t
}

func (t *ticker) note(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = s
}

func (t *ticker) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.latest == "" {
		return "still at work"
	}
	return t.latest
}

func (t *ticker) end() {
	close(t.done)
	<-t.stopped
}

// Parallel returns one step that runs others at the same time. The first
// error cancels the rest.
func Parallel(name string, steps ...Step) Step {
	return Step{Name: name, Run: func(ctx context.Context, note func(string)) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		notes := &notes{text: make([]string, len(steps)), to: note}
		errs := make(chan error, len(steps))
		for i, s := range steps {
			go func() {
				err := s.Run(ctx, func(text string) { notes.set(i, s.Name+": "+text) })
				notes.set(i, "")
				if err != nil {
					err = fmt.Errorf("%s: %w", s.Name, err)
					cancel()
				}
				errs <- err
			}()
		}
		var first error
		for range steps {
			if err := <-errs; err != nil && first == nil {
				first = err
			}
		}
		return first
	}}
}

// notes joins the notes of parallel steps into one.
type notes struct {
	mu   sync.Mutex
	text []string
	to   func(string)
}

func (n *notes) set(i int, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text[i] = text
	joined := ""
	for _, t := range n.text {
		if t != "" && joined != "" {
			joined += "; "
		}
		joined += t
	}
	n.to(joined)
}
