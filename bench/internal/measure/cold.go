package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/probe"
	"github.com/portway/portway/bench/internal/proxy"
)

// sampled is how many of the background Services say when all are there: rules
// come in few large writes, and a round over all would take longer than they do.
// What is in the kernel is compared in full after that.
const sampled = 20

// cold measures the start, until nothing more happens.
func (r *run) cold(ctx context.Context) error {
	first := map[netip.AddrPort]string{load.Kubernetes(): "cold.kubernetes", load.DNS().Port(): "cold.dns"}
	missing := []netip.AddrPort{load.Kubernetes(), load.DNS().Port()}
	for i := range min(sampled, r.Services) {
		missing = append(missing, load.Background(i*(r.Services-1)/max(1, min(sampled, r.Services)-1)).Port())
	}
	shooting, stop := context.WithCancel(ctx)
	defer stop()
	reached := map[netip.AddrPort]bool{}
	var last time.Time
	at := -1
	s := probe.Shooter{Host: r.net.Client, Pace: max(2*time.Millisecond, r.pace()), Patience: silence, Next: func() netip.AddrPort {
		if r.proxy.Ended() != nil {
			stop()
		}
		for range missing {
			at = (at + 1) % len(missing)
			if !reached[missing[at]] {
				return missing[at]
			}
		}
		return netip.AddrPort{}
	}, Told: func(shot probe.Shot) {
		if shot.Err != nil || reached[shot.To] {
			return
		}
		reached[shot.To] = true
		last = shot.Done
		if name, ok := first[shot.To]; ok {
			r.figures[name] = shot.Done.Sub(r.proxy.Started()).Seconds()
		}
		if len(reached) == len(missing) {
			stop()
		}
	}}
	limit := time.AfterFunc(r.Start, stop)
	defer limit.Stop()
	if err := s.Run(shooting); err != nil {
		return err
	}
	if len(reached) < len(missing) {
		waited := time.Since(r.proxy.Started()).Round(time.Second)
		return errors.Join(ctx.Err(), fmt.Errorf("%d of %d Services do not answer after %v", len(missing)-len(reached), len(missing), waited))
	}
	r.figures["cold.all"] = last.Sub(r.proxy.Started()).Seconds()
	if err := r.settle(ctx); err != nil {
		return err
	}
	if err := r.net.Node.ForgetFlows(); err != nil {
		return err
	}
	u, err := r.proxy.Usage()
	if err != nil {
		return err
	}
	r.figures["cold.cpu"] = u.CPU.Seconds()
	r.figures["rss.peak"] = float64(u.Peak) / (1 << 20)
	r.figures["rss.settled"] = float64(u.RSS) / (1 << 20)
	return r.count(ctx)
}

// settle waits until the proxy and its children have next to nothing to do.
func (r *run) settle(ctx context.Context) error {
	const window = 2 * time.Second
	const little = 60 * time.Millisecond
	deadline := time.Now().Add(r.Start)
	for time.Now().Before(deadline) {
		before, err := r.proxy.Usage()
		if err != nil {
			return err
		}
		if err := pause(ctx, window); err != nil {
			return err
		}
		after, err := r.proxy.Usage()
		if err != nil {
			return err
		}
		if before.Children == 0 && after.Children == 0 && after.CPU-before.CPU < little {
			return nil
		}
	}
	return fmt.Errorf("still at work after %v", r.Start)
}

// count reads the kernel, and compares it with what the API says.
func (r *run) count(ctx context.Context) (err error) {
	if r.kernel, err = r.proxy.Read(ctx); err != nil {
		return err
	}
	o := r.kernel.Objects
	r.figures["objects.rules"], r.figures["objects.chains"] = float64(o.Rules), float64(o.Chains)
	r.figures["objects.sets"], r.figures["objects.entries"] = float64(o.Sets), float64(o.Entries)
	if r.Proxy.Setting.Mode == "ipvs" {
		r.figures["objects.virtual"], r.figures["objects.real"] = float64(o.VirtualServers), float64(o.RealServers)
	}
	_, err = r.differences(r.kernel)
	return err
}

// differences is how many endpoints the kernel has and the API has not, or the
// other way round. The error names some.
func (r *run) differences(k proxy.Kernel) (int, error) {
	const named = 3
	want := r.Cluster.Want()
	lacking, extra := without(want, k.Destinations), without(k.Destinations, want)
	n := len(lacking) + len(extra)
	if n == 0 {
		return 0, nil
	}
	return n, fmt.Errorf("the kernel and the API differ in %d endpoints: it lacks %d, such as %v, and has %d too many, such as %v",
		n, len(lacking), lacking[:min(named, len(lacking))], len(extra), extra[:min(named, len(extra))])
}

// without are those of a that are not in b, in order.
func without(a, b map[netip.AddrPort]bool) []netip.AddrPort {
	var rest []netip.AddrPort
	for e := range a {
		if !b[e] {
			rest = append(rest, e)
		}
	}
	slices.SortFunc(rest, netip.AddrPort.Compare)
	return rest
}
