package ipvs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

const (
	// drainCheck is how often the connections of draining real servers are
	// counted.
	drainCheck = 10 * time.Second
	// quietAfter is when connections that are not established do not count any
	// more. The kernel keeps one in FIN_WAIT or TIME_WAIT for two minutes, but
	// one side of a connection may also be closed for long while the other one
	// sends.
	quietAfter = 2 * time.Minute
	// defaultDrain is kube-proxy's bound.
	defaultDrain = 15 * time.Minute
)

// drains are the real servers that take no new flows and keep the ones they
// have.
type drains struct {
	since map[drainKey]time.Time
	next  time.Time // when they are looked at
}

type drainKey struct {
	server kernel.Key
	real   netip.AddrPort
}

func (a drainKey) compare(b drainKey) int {
	return cmp.Or(a.server.Compare(b.server), a.real.Compare(b.real))
}

// noteDrains begins to drain what has weight 0 and is not wanted, also if an
// earlier process made it so, and forgets what is wanted again or gone.
func (s *pass) noteDrains() {
	d := &s.drains
	if d.since == nil {
		d.since = make(map[drainKey]time.Time)
	}
	maps.DeleteFunc(d.since, func(k drainKey, _ time.Time) bool { return !s.isDraining(k) })
	for k := range s.model.dirty.servers {
		h, ok := s.state[k]
		if !ok {
			continue
		}
		for _, r := range h.reals {
			key := drainKey{k, r.addr}
			if _, known := d.since[key]; known || !s.isDraining(key) {
				continue
			}
			if len(d.since) == 0 {
				d.next = s.now.Add(drainCheck)
			}
			d.since[key] = s.now
		}
	}
}

func (p *Plane) isDraining(k drainKey) bool {
	h, ok := p.state[k.server]
	if !ok {
		return false
	}
	i, ok := h.find(k.real)
	want, wanted := p.model.servers[k.server]
	return ok && h.reals[i].weight == 0 && wanted && want.drains && !want.wants(k.real)
}

// drain removes the real servers whose connections have ended, or whose time is
// over.
func (s *pass) drain(ctx context.Context) error {
	d := &s.drains
	if len(d.since) == 0 || s.now.Before(d.next) {
		return nil
	}
	d.next = s.now.Add(drainCheck)
	var ops []kernel.Op
	var server kernel.VirtualServer
	for _, k := range slices.SortedFunc(maps.Keys(d.since), drainKey.compare) {
		if k.server != server.Key {
			v, ok, err := s.servers.Get(ctx, k.server)
			if err != nil {
				return fmt.Errorf("count the connections of %s: %w", k.server, err)
			}
			server = v
			if !ok {
				s.refused = true // somebody took it
				continue
			}
		}
		if r, ok := server.Find(k.real); ok && s.isDrained(s.now.Sub(d.since[k]), r) {
			ops = append(ops, kernel.Op{Verb: kernel.DeleteReal, Key: k.server, Real: k.real})
			delete(d.since, k)
		}
	}
	return s.finish(ctx, ops)
}

func (p *Plane) isDrained(age time.Duration, r kernel.Real) bool {
	return r.Active+r.Inactive == 0 || r.Active == 0 && age >= quietAfter || age >= p.options.drain()
}

// finish deletes real servers, and virtual servers that were there for them
// only.
func (s *pass) finish(ctx context.Context, ops []kernel.Op) error {
	refused, err := s.changeServers(ctx, ops)
	if err != nil {
		return err
	}
	touched := make(map[kernel.Key]bool)
	for _, op := range ops {
		touched[op.Key] = true
	}
	plan := planServers(s.model, slices.SortedFunc(maps.Keys(touched), kernel.Key.Compare), s.state)
	more, err := s.changeServers(ctx, plan.shrink)
	for _, r := range append(refused, more...) {
		s.refused = true
		s.warn("%v", &r)
	}
	return err
}

// Kinds of objects in Report.Objects, besides the tables.
const (
	kindServers   = "virtual servers"
	kindReals     = "real servers"
	kindDraining  = "draining real servers"
	kindAddresses = "addresses"
	kindEntries   = "set entries"
)

// tell completes the report.
func (s *pass) tell() {
	held := map[string]int{
		kindServers: len(s.state), kindAddresses: len(s.locals), kindEntries: len(s.model.entries),
		kindDraining: len(s.drains.since),
	}
	for _, h := range s.state {
		held[kindReals] += len(h.reals)
	}
	for id, rules := range s.rules {
		held[string(id.table)] += len(rules)
	}
	s.report.Objects = make(map[string]dataplane.ObjectCount)
	for kind, n := range held {
		s.report.Objects[kind] = dataplane.ObjectCount{Held: n, Written: s.written[kind]}
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.failed), dataplane.ServicePortName.Compare) {
		s.report.Failed = append(s.report.Failed, dataplane.Failure{Name: name, Err: s.failed[name]})
	}
	if len(s.failed) > 0 {
		if !s.now.Before(s.retry) {
			s.retry = s.now.Add(retryAfter)
		}
		s.report.Again = s.retry
	}
	if next := s.drains.next; len(s.drains.since) > 0 && (s.report.Again.IsZero() || next.Before(s.report.Again)) {
		s.report.Again = next
	}
}
