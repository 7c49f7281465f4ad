package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/probe"
)

const (
	// apart is how far changes that are measured alone are from each other: more
	// than kube-proxy's minSyncPeriod.
	apart = 1100 * time.Millisecond
	// patience is how long one change may take.
	patience = 2 * time.Minute
	// silence is how long nothing must come to an endpoint that has gone, and how
	// long a connection is waited for.
	silence = 300 * time.Millisecond
)

// pace is how often a connection asks whether something has arrived. Where there is
// one processor, and slow system calls, asking must not be what is measured.
func (r *run) pace() time.Duration {
	if r.Alone {
		return 10 * time.Millisecond
	}
	return time.Millisecond
}

// watcher connects to one Service after the other, all the time.
type watcher struct {
	target atomic.Pointer[netip.AddrPort]
	stop   context.CancelFunc
	ended  chan error
}

func (r *run) watch(ctx context.Context) *watcher {
	ctx, stop := context.WithCancel(ctx)
	w := &watcher{stop: stop, ended: make(chan error, 1)}
	s := probe.Shooter{Host: r.net.Client, Pace: r.pace(), Patience: silence, Next: func() netip.AddrPort {
		if to := w.target.Load(); to != nil {
			return *to
		}
		return netip.AddrPort{}
	}}
	go func() { w.ended <- s.Run(ctx) }()
	return w
}

func (w *watcher) close() error {
	w.stop()
	return <-w.ended
}

// idle measures the CPU of one sync period in which nothing changes.
func (r *run) idle(ctx context.Context) error {
	const period = 30 * time.Second // both have it by default
	spent, err := r.spent(func() error { return pause(ctx, period) })
	if err != nil {
		return err
	}
	r.figures["idle.cpu"] = spent.Seconds() * time.Minute.Seconds() / period.Seconds()
	return nil
}

// spent measures the CPU that is used while f runs.
func (r *run) spent(f func() error) (time.Duration, error) {
	before, err := r.proxy.Usage()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := r.proxy.Usage()
	return after.CPU - before.CPU, err
}

// changes measures changes one at a time.
func (r *run) changes(ctx context.Context) (err error) {
	w := r.watch(ctx)
	defer func() { err = errors.Join(err, w.close()) }()
	if err := r.replacements(ctx, w, "endpoint"); err != nil {
		return err
	}
	return r.comeAndGo(ctx, w)
}

// replacements measures the change of one endpoint.
func (r *run) replacements(ctx context.Context, w *watcher, name string) error {
	times := probe.Histogram()
	var cpu time.Duration
	err := r.counting(name, r.Samples, func() (err error) {
		cpu, err = r.spent(func() error {
			for i := range r.Samples {
				took, err := r.replace(ctx, w, load.Canary(i%load.Canaries))
				if err != nil {
					return err
				}
				if err := errors.Join(times.RecordValue(int64(took)), pause(ctx, apart)); err != nil {
					return err
				}
			}
			return nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("one endpoint: %w", err)
	}
	r.quantiles(name, times)
	r.figures[name+".cpu"] = float64(cpu.Milliseconds()) / float64(r.Samples)
	return nil
}

// replace gives a canary another endpoint and waits for a connection to it.
func (r *run) replace(ctx context.Context, w *watcher, canary load.Service) (time.Duration, error) {
	to := canary.Port()
	w.target.Store(&to)
	fresh, err := r.Cluster.ReplaceOne(ctx, canary, 0)
	if err != nil {
		return 0, err
	}
	return r.arrival(ctx, "a connection to the new endpoint of "+canary.Name, fresh, time.Now())
}

// arrival waits for the first connection to an endpoint and says how long after
// the API server's answer it came. It may have come before.
func (r *run) arrival(ctx context.Context, what string, endpoint netip.Addr, answered time.Time) (time.Duration, error) {
	var first time.Time
	err := r.awaiting(ctx, what, patience, func() (ok bool, _ error) {
		first, ok = r.far.First(endpoint)
		return ok, nil
	})
	return max(0, first.Sub(answered)), err
}

// comeAndGo measures new and deleted Services.
func (r *run) comeAndGo(ctx context.Context, w *watcher) error {
	created, deleted := probe.Histogram(), probe.Histogram()
	for i := range r.Samples {
		came, went, err := r.passBy(ctx, w, load.Passing(i))
		if err != nil {
			return err
		}
		if err := errors.Join(created.RecordValue(int64(came)), deleted.RecordValue(int64(went))); err != nil {
			return err
		}
	}
	r.quantiles("new", created)
	r.quantiles("deleted", deleted)
	return nil
}

// passBy makes a Service and deletes it, also when the first goes wrong.
func (r *run) passBy(ctx context.Context, w *watcher, s load.Service) (came, went time.Duration, err error) {
	to := s.Port()
	w.target.Store(&to)
	endpoint := r.Cluster.Fresh(1)
	if err := r.Cluster.Create(ctx, s, endpoint); err != nil {
		return 0, 0, err
	}
	came, err = r.arrival(ctx, "a connection to the new Service "+s.Name, endpoint[0], time.Now())
	if err == nil {
		err = pause(ctx, apart)
	}
	start := time.Now()
	if err := errors.Join(err, r.Cluster.Delete(context.WithoutCancel(ctx), s)); err != nil {
		return 0, 0, err
	}
	went, err = r.departure(ctx, s, endpoint[0], start)
	return came, went, errors.Join(err, pause(ctx, apart))
}

// departure waits until nothing comes to an endpoint any more, and says how long
// after the start of its deletion the last connection came.
func (r *run) departure(ctx context.Context, s load.Service, endpoint netip.Addr, start time.Time) (time.Duration, error) {
	var last time.Time
	err := r.awaiting(ctx, "no connection to the deleted Service "+s.Name, patience, func() (bool, error) {
		last, _ = r.far.Last(endpoint)
		return time.Since(last) > silence && time.Since(start) > silence, nil
	})
	return max(0, last.Add(r.pace()).Sub(start)), err
}

// roll replaces all endpoints of a Service, ten at a time.
func (r *run) roll(ctx context.Context) (err error) {
	const rounds, step = 5, 10
	w := r.watch(ctx)
	defer func() { err = errors.Join(err, w.close()) }()
	s := load.Roll()
	to := s.Port()
	w.target.Store(&to)
	times := probe.Histogram()
	for range rounds {
		endpoints := r.Cluster.Endpoints(s)
		var fresh []netip.Addr
		for at := 0; at < len(endpoints); at += step {
			fresh = r.Cluster.Fresh(step)
			copy(endpoints[at:], fresh)
			if err := r.Cluster.SetEndpoints(ctx, s, endpoints); err != nil {
				return err
			}
		}
		answered := time.Now()
		var first time.Time
		err := r.awaiting(ctx, "a connection to the last of the new endpoints", patience, func() (bool, error) {
			for _, e := range fresh {
				if t, ok := r.far.First(e); ok && (first.IsZero() || t.Before(first)) {
					first = t
				}
			}
			return !first.IsZero(), nil
		})
		if err != nil {
			return err
		}
		if err := errors.Join(times.RecordValue(int64(max(0, first.Sub(answered)))), pause(ctx, apart)); err != nil {
			return err
		}
	}
	r.quantiles("roll", times)
	delete(r.figures, "roll.p99") // of five
	return nil
}
