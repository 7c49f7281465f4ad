package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/network"
	"github.com/portway/portway/bench/internal/probe"
	"github.com/portway/portway/bench/internal/proxy"
)

// Part is one group of figures.
type Part string

// The parts, in the order in which they are measured.
const (
	Packets  Part = "packets"
	Idle     Part = "idle"
	Changes  Part = "changes"
	Roll     Part = "roll"
	Churn    Part = "churn"
	Restart  Part = "restart"
	Audit    Part = "audit"
	Affinity Part = "affinity"
)

// Parts are all parts beside the start, which is always measured.
func Parts() []Part { return []Part{Packets, Idle, Changes, Roll, Churn, Restart, Audit, Affinity} }

// Config says what is measured.
type Config struct {
	Cluster  *load.Cluster
	Services int // the background Services that there are
	Proxy    proxy.Config
	Parts    []Part
	Samples  int           // of each change that is measured alone
	Churn    time.Duration // how long 100 changes per second last
	Start    time.Duration // how long the first sync may take
	Alone    bool          // the kernel does nothing but this
	Say      func(string)  // told what is being done
}

// run is the measuring of one proxy.
type run struct {
	Config
	net, direct    *network.Network
	far, directFar *probe.Far
	proxy          *proxy.Proxy
	figures        Figures
	kernel         proxy.Kernel
	counter        *counter // nil if the kernel does other things, too
}

// Run measures one proxy on a node of its own.
func Run(ctx context.Context, cfg Config) (figures Figures, err error) {
	for _, part := range cfg.Parts {
		if !slices.Contains(Parts(), part) {
			return nil, fmt.Errorf("no part is called %q: %v", part, Parts())
		}
	}
	r := &run{Config: cfg, figures: Figures{}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	r.Say("start")
	if err := r.cold(ctx); err != nil {
		return r.figures, r.explain("start", err)
	}
	steps := map[Part]func(context.Context) error{
		Packets: r.packets, Idle: r.idle, Changes: r.changes, Roll: r.roll, Churn: r.churn, Restart: r.restart, Audit: r.audit,
		Affinity: r.affinity,
	}
	for _, part := range cfg.Parts {
		r.Say(string(part))
		if err := steps[part](ctx); err != nil {
			return r.figures, r.explain(string(part), err)
		}
	}
	return r.figures, nil
}

// explain adds what the proxy says.
func (r *run) explain(what string, err error) error {
	if ended := r.proxy.Ended(); ended != nil {
		return fmt.Errorf("%s: %w: %w", what, err, ended)
	}
	return fmt.Errorf("%s: %w\nthe last that %s logged:\n%s", what, err, r.Proxy.Name, r.proxy.Tail())
}

func (r *run) open(ctx context.Context) (err error) {
	if r.net, err = network.New(true); err != nil {
		return err
	}
	if err = network.RoutePods(); err != nil {
		return err
	}
	if r.direct, err = network.New(false); err != nil {
		return err
	}
	if r.far, err = probe.Serve(ctx, r.net.Far); err != nil {
		return err
	}
	if r.directFar, err = probe.Serve(ctx, r.direct.Far); err != nil {
		return err
	}
	if err = r.openCounter(); err != nil {
		return err
	}
	r.Proxy.Node = r.net.Node
	if err = quiet(ctx); err != nil {
		return err
	}
	return r.start()
}

func (r *run) start() (err error) {
	r.proxy, err = proxy.Start(r.Proxy)
	return err
}

func (r *run) close() error {
	if r.proxy != nil {
		r.proxy.Stop()
	}
	var errs []error
	for _, f := range []*probe.Far{r.far, r.directFar} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	for _, n := range []*network.Network{r.net, r.direct} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

// quantiles puts p50 and p99 of a histogram into the figures, in milliseconds.
func (r *run) quantiles(name string, h *hdr.Histogram) {
	r.figures[name+".p50"] = float64(h.ValueAtQuantile(50)) / 1e6
	r.figures[name+".p99"] = float64(h.ValueAtQuantile(99)) / 1e6
}

// awaiting asks until done says so, every millisecond, and fails after limit or
// when the proxy has ended.
func (r *run) awaiting(ctx context.Context, what string, limit time.Duration, done func() (bool, error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("%s: not after %v", what, limit)
		case <-tick.C:
		}
		if err := r.proxy.Ended(); err != nil {
			return err
		}
	}
}

// pause lets a time pass.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
