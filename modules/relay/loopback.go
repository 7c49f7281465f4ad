package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// Loopback is a plane for one family that answers NodePorts of TCP at 127.0.0.1
// or ::1, in any mode, if the node wants it: the kernel could translate what is
// sent there only with route_localnet, which lets neighbours in
// (CVE-2020-8558).
//
// Flows take the NodePort's route for the node. Where that refuses, nobody
// listens, so they are refused too; what a route drops is refused as well.
type Loopback struct {
	family dataplane.Family
	relay  *Relay

	last *dataplane.Snapshot // nil: compare all
	want map[uint16]Route
	open map[uint16]*Listener
	// failed are ports at which somebody else listens, say.
	failed map[uint16]error
	retry  time.Time
}

// retryAfter is when a port that could not be opened is tried again.
const retryAfter = 30 * time.Second

// NewLoopback returns the plane of a family.
func NewLoopback(f dataplane.Family, cfg Config) *Loopback {
	return &Loopback{family: f, relay: New(cfg), open: make(map[uint16]*Listener), failed: make(map[uint16]error)}
}

// Sync opens, changes and closes listeners. They belong to this process, so
// there is nothing that others could have changed.
func (p *Loopback) Sync(ctx context.Context, req dataplane.SyncRequest) (dataplane.Report, error) {
	r := dataplane.Report{Full: p.last == nil || req.Distrust}
	touched := p.aim(req.Want, r.Full)
	if !req.Now.Before(p.retry) {
		touched = slices.AppendSeq(touched, maps.Keys(p.failed))
	}
	slices.Sort(touched)
	for _, port := range slices.Compact(touched) {
		changed, err := p.bring(ctx, port)
		if ctx.Err() != nil {
			p.last = nil
			return r, fmt.Errorf("loopback NodePorts, %s: %w", p.family, ctx.Err())
		}
		if changed {
			r.Writes++
		}
		delete(p.failed, port)
		if err != nil {
			p.failed[port] = err
		}
	}
	p.last = req.Want
	r.Packets = map[string]uint64{dataplane.LoopbackAccepted: p.relay.accepted.Load()}
	p.tell(&r, req.Now)
	return r, nil
}

// aim takes over what is wanted and returns the ports that may need work.
func (p *Loopback) aim(want *dataplane.Snapshot, full bool) []uint16 {
	var touched []uint16
	if full || want.Node().LoopbackNodePorts != p.last.Node().LoopbackNodePorts {
		p.want = loopbackRoutes(want, p.family)
		touched = slices.AppendSeq(touched, maps.Keys(p.want))
		return slices.AppendSeq(touched, maps.Keys(p.open))
	}
	if !want.Node().LoopbackNodePorts {
		return nil
	}
	for c := range want.ChangesSince(p.last) {
		for port := range loopbackPorts(c.Old, p.family) {
			touched = append(touched, port)
			if r, ok := p.want[port]; ok && r.Name == c.Name {
				delete(p.want, port)
			}
		}
		for port, r := range loopbackPorts(c.New, p.family) {
			touched = append(touched, port)
			p.want[port] = r
		}
	}
	return touched
}

// bring makes one port as it is wanted.
func (p *Loopback) bring(ctx context.Context, port uint16) (changed bool, err error) {
	want, wanted := p.want[port]
	l, open := p.open[port]
	switch {
	case open && !wanted:
		delete(p.open, port)
		return true, l.Close()
	case open && !l.Route().Equal(want):
		l.Set(want)
		return true, nil
	case !open && wanted:
		l, err := p.relay.Listen(ctx, dataplane.TCP, netip.AddrPortFrom(p.family.Loopback(), port), want)
		if err != nil {
			return false, err
		}
		p.open[port] = l
		return true, nil
	}
	return false, nil
}

// tell completes the report. Ports are told in order, hence Services too.
func (p *Loopback) tell(r *dataplane.Report, now time.Time) {
	for _, port := range slices.Sorted(maps.Keys(p.failed)) {
		r.Failed = append(r.Failed, dataplane.Failure{Name: p.want[port].Name, Err: p.failed[port]})
	}
	if len(p.failed) > 0 {
		if !now.Before(p.retry) {
			p.retry = now.Add(retryAfter)
		}
		r.Again = p.retry
	}
}

// Audit compares the listeners with what a snapshot wants.
func (p *Loopback) Audit(ctx context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	return p.listening(Nobody).Audit(ctx, want)
}

// Explain tells where a flow to a loopback address goes. All others are not for
// this plane, and it says so by NotOurs.
func (p *Loopback) Explain(ctx context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	return p.listening(func(client netip.Addr) bool { return client == f.Src.Addr() }).Explain(ctx, f)
}

func (p *Loopback) listening(clients func(netip.Addr) bool) LoopbackTable {
	return LoopbackTable{p.family, p.relay.Table(clients)}
}

// Table is what listens, to be saved. It is safe for concurrent use.
func (p *Loopback) Table() []Listening { return p.relay.Table(Everybody) }

// Close stops listening. Connections go on until they or the process end.
func (p *Loopback) Close() error {
	var errs []error
	for _, l := range p.open {
		errs = append(errs, l.Close())
	}
	clear(p.open)
	p.last = nil
	return errors.Join(errs...)
}
