package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/relay"
)

// Plane makes the Services of one family work by listeners and rules.
type Plane struct {
	family dataplane.Family
	kernel netfilter.Kernel
	local  func() (func(netip.Addr) bool, error)
	relay  *relay.Relay
	// mark is on what the relay sends, for the rules to know it.
	mark *atomic.Uint32
	// chunk is how many chains one transaction may write; 0 is no limit.
	chunk    int
	warnings []string

	listeners map[poolKey]*relay.Listener
	// retired are listeners that rules may still lead to.
	retired []*relay.Listener
	// have is what the kernel has confirmed; nil after an error.
	have *state
	// owed are removed frontends that no successful Sync has reported yet.
	owed []dataplane.FrontendKey
}

// retryAfter is when a ServicePort that could not be programmed is tried again,
// if nothing changes before.
const retryAfter = 30 * time.Second

// Sync opens listeners, makes the rules lead to them, tells them their
// endpoints, and closes those that nothing leads to any more.
func (p *Plane) Sync(ctx context.Context, req dataplane.SyncRequest) (dataplane.Report, error) {
	s := &pass{Plane: p, want: req.Want, report: dataplane.Report{Full: p.have == nil || req.Distrust}}
	if p.have == nil {
		s.report.Warnings = slices.Clone(p.warnings)
	}
	if err := s.run(ctx); err != nil {
		p.have, p.owed = nil, s.report.Removed
		return s.report, fmt.Errorf("userspace mode, %s: %w", p.family, err)
	}
	p.owed = nil
	if len(s.report.Failed) > 0 {
		s.report.Again = req.Now.Add(retryAfter)
	}
	return s.report, nil
}

// Close stops listening. The rules stay, and what they redirect is refused until
// the next process listens; connections go on until this one ends.
func (p *Plane) Close() error {
	var errs []error
	for _, l := range slices.AppendSeq(p.retired, maps.Values(p.listeners)) {
		errs = append(errs, l.Close())
	}
	p.listeners, p.retired, p.have = make(map[poolKey]*relay.Listener), nil, nil
	return errors.Join(errs...)
}

// Relays tells whether a destination is a listener of the plane, to which
// conntrack sees the flows of Services go. It is safe for concurrent use.
func (p *Plane) Relays(protocol dataplane.Protocol, to netip.AddrPort) bool {
	return p.relay.Listens(protocol, to)
}

// pass is one Sync.
type pass struct {
	*Plane
	want   *dataplane.Snapshot
	report dataplane.Report
	routes map[poolKey]relay.Route
}

func (s *pass) run(ctx context.Context) error {
	have := s.have
	if s.report.Full {
		var err error
		if have, err = read(ctx, s.kernel, s.family); err != nil {
			return err
		}
		if s.have != nil {
			s.report.Repaired = differences(s.have, nil, have)
		}
	}
	s.mark.Store(s.want.Node().Mark)
	s.removed(have.sets)
	s.routes = routesOf(s.want, s.family)
	if err := s.open(ctx, have.listeners); err != nil {
		return err
	}
	wish := build(s.want, s.family, s.at)
	plan := makePlan(&wish, have)
	if err := s.commit(ctx, plan); err != nil {
		return err
	}
	s.report.Writes += plan.writes()
	s.have = confirmed(&wish)
	return nil
}

// routesOf are the listeners that a snapshot wants.
func routesOf(want *dataplane.Snapshot, f dataplane.Family) map[poolKey]relay.Route {
	all := make(map[poolKey]relay.Route)
	for sp := range want.ServicePorts() {
		for k, pool := range poolsInUse(sp, f) {
			all[k] = relay.RouteTo(sp, pool)
		}
	}
	return all
}

// at is where a pool's flows are taken.
func (p *Plane) at(k poolKey) (netip.AddrPort, bool) {
	l, ok := p.listeners[k]
	if !ok {
		return netip.AddrPort{}, false
	}
	return l.Addr(), true
}

// removed notes the frontends that the kernel knows and the snapshot does not.
func (s *pass) removed(sets []netfilter.Set) {
	for _, k := range append(claimed(sets, s.family), s.owed...) {
		if _, ok := s.want.Lookup(k); !ok {
			s.report.Removed = append(s.report.Removed, k)
		}
	}
	slices.SortFunc(s.report.Removed, dataplane.FrontendKey.Compare)
	s.report.Removed = slices.Compact(s.report.Removed)
}

// open opens the listeners that are missing, in the order of programming: first
// at the ports to which the rules of an earlier run lead.
func (s *pass) open(ctx context.Context, earlier map[string]netip.AddrPort) error {
	addr, ok := listenAddr(s.want.Node(), s.family)
	for k, l := range s.listeners {
		if !ok || l.Addr().Addr() != addr {
			s.retired = append(s.retired, l)
			delete(s.listeners, k)
		}
	}
	taken := make(map[string]dataplane.ServicePortName)
	for sp := range s.want.ServicePorts() {
		var errs []error
		for k := range poolsInUse(sp, s.family) {
			other, clash := taken[k.chain()]
			taken[k.chain()] = sp.Name
			switch _, there := s.listeners[k]; {
			case clash: // a collision of hashes must not connect two Services
				errs = append(errs, fmt.Errorf("its chain %s belongs to %s", k.chain(), other))
				s.retire(k)
			case there:
			case !ok:
				errs = append(errs, fmt.Errorf("the node has no %s address to listen at", s.family))
			default:
				if err := s.listen(ctx, k, addr, earlier[k.chain()]); err != nil {
					errs = append(errs, err)
				}
			}
		}
		if len(errs) > 0 {
			s.report.Failed = append(s.report.Failed, dataplane.Failure{Name: sp.Name, Err: errors.Join(errs...)})
		}
	}
	return ctx.Err()
}

func (s *pass) retire(k poolKey) {
	if l, ok := s.listeners[k]; ok {
		s.retired = append(s.retired, l)
		delete(s.listeners, k)
	}
}

// The relay's ports are chosen by chance in a range where the kernel chooses
// none for others (net.ipv4.ip_local_port_range) and Kubernetes has no
// NodePorts: a port that our dead process has left is not soon somebody else's.
const (
	firstPort = 20000
	lastPort  = 29999
	attempts  = 20
)

// listen opens the listener of a pool.
func (s *pass) listen(ctx context.Context, k poolKey, addr netip.Addr, earlier netip.AddrPort) error {
	var ports []uint16
	if earlier.Addr() == addr {
		ports = append(ports, earlier.Port())
	}
	for range attempts {
		ports = append(ports, uint16(firstPort+rand.IntN(lastPort-firstPort+1)))
	}
	var err error
	for _, port := range append(ports, 0) {
		var l *relay.Listener
		l, err = s.relay.Listen(ctx, k.name.Protocol, netip.AddrPortFrom(addr, port), s.routes[k])
		if err == nil {
			s.listeners[k] = l
			s.report.Writes++
			return nil
		}
		if errors.Is(err, errors.ErrUnsupported) {
			break
		}
	}
	return err
}

// commit writes a plan. The listeners hear of their endpoints when the rules
// that lead to them are right: before, a frontend could lead to a set of
// endpoints that neither the old nor the new snapshot has for it.
func (s *pass) commit(ctx context.Context, p plan) error {
	before, after := p.sets.Around(givesMeaning(s.family))
	if err := s.kernel.ChangeSets(ctx, before); err != nil {
		return err
	}
	for _, tx := range p.tables {
		for _, part := range tx.Split(s.chunk) {
			if part.IsEmpty() {
				continue
			}
			if err := s.kernel.Restore(ctx, part); err != nil {
				return err
			}
		}
	}
	if err := s.settle(); err != nil {
		return err
	}
	return s.kernel.ChangeSets(ctx, after)
}

// settle makes the listeners equal to the routes.
func (s *pass) settle() error {
	for k, l := range s.listeners {
		switch want, wanted := s.routes[k]; {
		case !wanted:
			s.retire(k)
		case !l.Route().Equal(want):
			l.Set(want)
			s.report.Writes++
		}
	}
	var errs []error
	for _, l := range s.retired {
		errs = append(errs, l.Close())
		s.report.Writes++
	}
	s.retired = nil
	return errors.Join(errs...)
}
