package measure

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/portway/portway/bench/internal/load"
	"github.com/portway/portway/bench/internal/network"
	"github.com/portway/portway/bench/internal/probe"
)

// held is how many connections live through the restart.
const held = 100

// restart ends the proxy and starts it again, with nothing changed.
func (r *run) restart(ctx context.Context) (err error) {
	way := probe.Way{From: r.net.Client, To: netip.AddrPortFrom(load.Flow().Address, probe.Echo)}
	open := make([]net.Conn, 0, held)
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range held {
		c, err := probe.Dial(ctx, way)
		if err != nil {
			return err
		}
		open = append(open, c)
	}
	var failed int
	shooting, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	to := load.Background(0).Port()
	s := probe.Shooter{
		Host: r.net.Client, Pace: 5 * time.Millisecond, Patience: 3 * time.Second,
		Next: func() netip.AddrPort { return to },
		Told: func(shot probe.Shot) {
			if shot.Err != nil {
				failed++
			}
		},
	}
	go func() { ended <- s.Run(shooting) }()
	err = r.again(ctx)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	broken := 0
	for _, c := range open {
		if _, err := probe.Trip(c); err != nil {
			broken++
		}
	}
	r.figures["restart.broken"], r.figures["restart.refused"] = float64(broken), float64(failed)
	return nil
}

// again is the restart itself.
func (r *run) again(ctx context.Context) error {
	var writes *network.Monitor
	if r.Proxy.Setting.Backend == "nft" {
		var err error
		if writes, err = network.MonitorNFTables(r.net.Node); err != nil {
			return err
		}
	}
	r.proxy.Stop()
	if err := r.start(); err != nil {
		return err
	}
	// Whoever starts needs a moment until there is something to settle.
	if err := errors.Join(pause(ctx, 3*time.Second), r.settle(ctx)); err != nil {
		return err
	}
	u, err := r.proxy.Usage()
	if err != nil {
		return err
	}
	r.figures["restart.cpu"] = u.CPU.Seconds()
	if writes != nil {
		told, err := writes.Close()
		if err != nil {
			return err
		}
		r.figures["restart.rules"], r.figures["restart.messages"] = float64(told.Rules), float64(told.All)
	}
	return nil
}
