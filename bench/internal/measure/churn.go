package measure

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/probe"
)

// perSecond is how many changes are made, a tenth of them to the canaries.
const perSecond = 100

// churn makes many changes at an even pace, and looks after them that nothing is
// lost. Only the canaries say how long a change takes; a change that a later one
// of its canary has overtaken counts until the later one has arrived.
func (r *run) churn(ctx context.Context) error {
	times := probe.Histogram()
	var made atomic.Int64
	start := time.Now()
	cpu, err := r.spent(func() error { return r.makeChanges(ctx, times, &made) })
	if err != nil {
		return err
	}
	r.figures["churn.rate"] = float64(made.Load()) / time.Since(start).Seconds()
	r.figures["churn.cpu"] = float64(cpu.Milliseconds()) / float64(made.Load())
	r.quantiles("churn", times)
	lost, err := r.lost(ctx)
	if err != nil {
		return err
	}
	u, err := r.proxy.Usage()
	if err != nil {
		return err
	}
	r.figures["churn.lost"], r.figures["churn.rss"] = float64(lost), float64(u.RSS)/(1<<20)
	return nil
}

// lost is how many endpoints differ from the API when the proxy has nothing to do
// any more. A busy API server may be late, and tell it more.
func (r *run) lost(ctx context.Context) (n int, err error) {
	for range 3 {
		if err := r.settle(ctx); err != nil {
			return 0, err
		}
		kernel, err := r.proxy.Read(ctx)
		if err != nil {
			return 0, err
		}
		var differ error
		if n, differ = r.differences(kernel); n == 0 {
			return 0, nil
		}
		r.Say(differ.Error())
	}
	return n, nil
}

func (r *run) makeChanges(ctx context.Context, times *hdr.Histogram, made *atomic.Int64) error {
	shooting, stop := context.WithCancel(ctx)
	defer stop()
	at := 0
	s := probe.Shooter{Host: r.net.Client, Pace: r.pace(), Patience: silence, Next: func() netip.AddrPort {
		at++
		return load.Canary(at % load.Canaries).Port()
	}}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Run(shooting) })
	g.Go(func() error {
		defer stop()
		var mu sync.Mutex
		changes, ctx := errgroup.WithContext(ctx)
		for i := range load.Canaries {
			changes.Go(func() error { return r.churnCanary(ctx, i, made, &mu, times) })
		}
		changes.Go(func() error { return r.churnOthers(ctx, made) })
		return changes.Wait()
	})
	return g.Wait()
}

// churnCanary changes one canary every second.
func (r *run) churnCanary(ctx context.Context, i int, made *atomic.Int64, mu *sync.Mutex, times *hdr.Histogram) error {
	canary := load.Canary(i)
	deadline := time.Now().Add(r.Churn)
	tick := time.NewTicker(time.Second * load.Canaries / (perSecond / 10))
	defer tick.Stop()
	type change struct {
		endpoint netip.Addr
		answered time.Time
	}
	var waiting []change
	// arrived takes out what the kernel has, or has something later than.
	arrived := func() error {
		mu.Lock()
		defer mu.Unlock()
		for i := len(waiting) - 1; i >= 0; i-- {
			first, ok := r.far.First(waiting[i].endpoint)
			if !ok {
				continue
			}
			for _, c := range waiting[:i+1] {
				if err := times.RecordValue(int64(max(0, first.Sub(c.answered)))); err != nil {
					return err
				}
			}
			waiting = waiting[i+1:]
			break
		}
		return nil
	}
	for time.Now().Before(deadline) {
		fresh, err := r.Cluster.ReplaceOne(ctx, canary, 0)
		if err != nil {
			return err
		}
		waiting = append(waiting, change{fresh, time.Now()})
		made.Add(1)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := arrived(); err != nil {
			return err
		}
	}
	return r.awaiting(ctx, "the last change of "+canary.Name, patience, func() (bool, error) {
		return len(waiting) == 0, arrived()
	})
}

// churnOthers replaces endpoints of the background Services, one each time.
func (r *run) churnOthers(ctx context.Context, made *atomic.Int64) error {
	const share = perSecond - perSecond/10
	tick := time.NewTicker(time.Second / share)
	defer tick.Stop()
	writers, ctx := errgroup.WithContext(ctx)
	writers.SetLimit(min(8, r.Services)) // two changes of one Service never meet
	deadline := time.Now().Add(r.Churn)
	for i := 0; time.Now().Before(deadline); i++ {
		writers.Go(func() error {
			if _, err := r.Cluster.ReplaceOne(ctx, load.Background(i*7919%r.Services), i); err != nil {
				return err
			}
			made.Add(1)
			return nil
		})
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), writers.Wait())
		case <-tick.C:
		}
	}
	return writers.Wait()
}
