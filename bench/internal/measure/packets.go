package measure

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/network"
	"github.com/portway/portway/bench/internal/probe"
)

const (
	connects  = 4000            // each way, to measure the first packet
	rateLimit = 60000           // connections in one measurement of their rate
	streaming = 3 * time.Second // one measurement of throughput, or of the rate
	trips     = 5000            // of one byte
	µs        = float64(time.Microsecond)
)

// packets measures what flows pay, next to a node without a proxy.
func (r *run) packets(ctx context.Context) error {
	endpoint := network.Endpoints.Addr().Next()
	first, middle, last := r.order()
	ways := []probe.Way{
		{From: r.direct.Client, To: netip.AddrPortFrom(endpoint, probe.Arrive)},
		{From: r.net.Client, To: first},
		{From: r.net.Client, To: middle},
		{From: r.net.Client, To: last},
	}
	times, err := probe.Connect(ctx, ways, connects)
	if err != nil {
		return err
	}
	direct := median(times[0])
	r.figures["packet.direct"] = direct
	for i, name := range []string{"first", "middle", "last"} {
		r.figures["packet."+name] = median(times[i+1]) - direct
	}
	flow := load.Flow().Address
	for suffix, from := range map[string]*network.Host{"": r.net.Client, ".direct": r.direct.Client} {
		arrive, drain, echo := last, netip.AddrPortFrom(flow, probe.Drain), netip.AddrPortFrom(flow, probe.Echo)
		if suffix != "" {
			arrive, drain, echo = netip.AddrPortFrom(endpoint, probe.Arrive), netip.AddrPortFrom(endpoint, probe.Drain), netip.AddrPortFrom(endpoint, probe.Echo)
		}
		rate, err1 := probe.Rate(ctx, probe.Way{From: from, To: arrive}, streaming, rateLimit)
		through, err2 := probe.Throughput(ctx, probe.Way{From: from, To: drain}, streaming)
		trip, err3 := probe.RoundTrips(ctx, probe.Way{From: from, To: echo}, trips)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		r.figures["packet.rate"+suffix] = rate
		r.figures["packet.throughput"+suffix] = through / (1 << 20)
		r.figures["packet.trip"+suffix] = median(trip)
	}
	return nil
}

func median(h *hdr.Histogram) float64 { return float64(h.ValueAtQuantile(50)) / µs }

// order is the first, the middle and the last Service in the order in which a
// packet meets them: the order of the rules. Where no rule names them, as in
// ipvs, it is that of their names.
func (r *run) order() (first, middle, last netip.AddrPort) {
	background := map[netip.Addr]bool{}
	for i := range r.Services {
		background[load.Background(i).Address] = true
	}
	var met []netip.Addr
	for _, a := range r.kernel.Services {
		if background[a] {
			met = append(met, a)
			delete(background, a)
		}
	}
	at := func(i int) netip.AddrPort {
		s := load.Background(i)
		if len(met) > 0 {
			s.Address = met[i]
		}
		return s.Port()
	}
	n := cmp.Or(len(met), r.Services)
	return at(0), at(n / 2), at(n - 1)
}
