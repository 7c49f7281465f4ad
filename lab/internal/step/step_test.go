package step

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder makes steps that remember that they ran.
type recorder struct{ ran []string }

func (r *recorder) step(name string, err error) Step {
	return Step{Name: name, Run: func(context.Context, func(string)) error {
		r.ran = append(r.ran, name)
		return err
	}}
}

func TestRunStopsAtTheFirstError(t *testing.T) {
	var r recorder
	var out strings.Builder
	broken := errors.New("broken")
	err := Run(t.Context(), &out, []Step{r.step("one", nil), r.step("two", broken), r.step("three", nil)})
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "two: ") {
		t.Errorf("error is %v", err)
	}
	if want := []string{"one", "two"}; !slices.Equal(r.ran, want) {
		t.Errorf("ran %v, want %v", r.ran, want)
	}
	if got, want := out.String(), "==> one\n==> two\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

func TestRunAllGoesOn(t *testing.T) {
	var r recorder
	var out strings.Builder
	first, second := errors.New("first"), errors.New("second")
	err := RunAll(t.Context(), &out, []Step{r.step("one", first), r.step("two", nil), r.step("three", second)})
	if !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("error is %v", err)
	}
	if len(r.ran) != 3 {
		t.Errorf("ran %v", r.ran)
	}
}

func TestRunStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	var r recorder
	enough := errors.New("interrupted")
	stop := Step{Name: "stop", Run: func(context.Context, func(string)) error { cancel(enough); return nil }}
	if err := Run(ctx, &strings.Builder{}, []Step{stop, r.step("later", nil)}); !errors.Is(err, enough) {
		t.Errorf("error is %v", err)
	}
	if len(r.ran) != 0 {
		t.Errorf("ran %v after the cancellation", r.ran)
	}
}

func TestLongStepsShowProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := Step{Name: "compile", Run: func(_ context.Context, note func(string)) error {
			<-time.After(heartbeat + time.Second)
			note("7 packages")
			<-time.After(heartbeat)
			return nil
		}}
		if err := Run(t.Context(), &out, []Step{s}); err != nil {
			t.Fatal(err)
		}
		want := "==> compile\n    15s still at work\n    30s 7 packages\n    done in 31s\n"
		if out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	})
}

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(name string, d time.Duration) Step {
			return Step{Name: name, Run: func(_ context.Context, note func(string)) error {
				note("waiting")
				<-time.After(d)
				return nil
			}}
		}
		var out strings.Builder
		start := time.Now()
		err := Run(t.Context(), &out, []Step{Parallel("both", wait("long", 20*time.Second), wait("short", 5*time.Second))})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 20*time.Second {
			t.Errorf("took %s", took)
		}
		if want := "==> both\n    15s long: waiting\n    done in 20s\n"; out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	})
}

func TestParallelCancelsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		fails := Step{Name: "fails", Run: func(context.Context, func(string)) error { return broken }}
		waits := Step{Name: "waits", Run: func(ctx context.Context, _ func(string)) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		err := Run(t.Context(), &strings.Builder{}, []Step{Parallel("both", waits, fails)})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "both: fails: ") {
			t.Errorf("error is %v", err)
		}
	})
}
