package userspace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
	"github.com/portway/portway/modules/relay"
)

// pass is what one Sync does about listeners.
type pass struct {
	*Plane
	// earlier are the places to which rules led before the first Sync, by the
	// chain of their pool.
	earlier  map[string]netip.AddrPort
	reserved map[uint16]bool // their ports
	writes   int
	warnings []string
}

// observe notes where the rules of an earlier process lead.
func (s *pass) observe(id program.ChainID, rules []netfilter.Rule) {
	if id.Table != netfilter.NAT || !strings.HasPrefix(id.Name, prefixPool) {
		return
	}
	if s.earlier == nil {
		s.earlier, s.reserved = make(map[string]netip.AddrPort), make(map[uint16]bool)
	}
	for _, r := range rules {
		if r.Target.Kind == netfilter.TargetDNAT {
			s.earlier[id.Name] = r.Target.To
			s.reserved[r.Target.To.Port()] = true
		}
	}
}

// source opens the listeners that a ServicePort needs and does not have.
func (s *pass) source(ctx context.Context, sp *dataplane.ServicePort) (program.Source, error) {
	src := source{translator: s.translator, sp: sp}
	if !slices.Contains(relayed(), sp.Name.Protocol) {
		return src, fmt.Errorf("its flows are refused: the relay carries no %s: %w", sp.Name.Protocol, errors.ErrUnsupported)
	}
	var errs []error
	for _, k := range poolsInUse(sp, s.family) {
		l, err := s.listener(ctx, k, relay.RouteTo(sp, poolOf(sp, s.family, k.scope)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		src.at[k.scope] = l.Addr()
	}
	return src, errors.Join(errs...)
}

func (s *pass) listener(ctx context.Context, k poolKey, to relay.Route) (*relay.Listener, error) {
	if l, ok := s.listeners.open[k]; ok {
		return l, nil
	}
	if !s.listenAt.IsValid() {
		return nil, fmt.Errorf("the node has no %s address to listen at", s.family)
	}
	l, err := s.listen(ctx, k, to)
	if err == nil {
		s.listeners.open[k] = l
		s.writes++
	}
	return l, err
}

// The relay's ports are chosen by chance in a range where the kernel chooses
// none for others (net.ipv4.ip_local_port_range) and Kubernetes has no
// NodePorts: a port that our dead process has left is not soon somebody else's.
const (
	firstPort = 20000
	ports     = 10000
	attempts  = 20
)

// listen opens the listener of a pool: first at the port to which the rules of
// an earlier process lead.
func (s *pass) listen(ctx context.Context, k poolKey, to relay.Route) (*relay.Listener, error) {
	if was := s.earlier[k.chain()]; was.Addr() == s.listenAt && was.Port() != 0 {
		l, err := s.relay.Listen(ctx, k.name.Protocol, was, to)
		if err == nil {
			return l, nil
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			s.warnings = append(s.warnings, fmt.Sprintf(
				"somebody else listens at %s %s, to which rules of an earlier run lead clients of %s until this Sync ends",
				strings.ToLower(k.name.Protocol.String()), was, k.name))
		}
	}
	var err error
	for range attempts {
		var l *relay.Listener
		at := netip.AddrPortFrom(s.listenAt, s.freePort(k.name.Protocol))
		if l, err = s.relay.Listen(ctx, k.name.Protocol, at, to); err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

// freePort is one that we do not have, nor had: another Service's rules may
// still lead to that. If there is none it is 0, and the kernel chooses.
func (s *pass) freePort(p dataplane.Protocol) uint16 {
	start := rand.IntN(ports)
	for i := range ports {
		port := uint16(firstPort + (start+i)%ports)
		if !s.reserved[port] && !s.relay.Listens(p, netip.AddrPortFrom(s.listenAt, port)) {
			return port
		}
	}
	return 0
}

// settle makes the listeners of some ServicePorts equal to what is programmed of
// them. It comes after the rules: before, a frontend could lead to a set of
// endpoints that neither the old nor the new snapshot has for it.
func (s *pass) settle(names []dataplane.ServicePortName) error {
	for _, n := range names {
		src, _ := s.program.Source(n)
		for _, scope := range scopes() {
			s.bring(poolKey{n, scope}, src)
		}
	}
	return s.closeRetired(names)
}

// bring makes one listener as a source wants it; it may want none.
func (s *pass) bring(k poolKey, src program.Source) {
	l, open := s.listeners.open[k]
	if !open {
		return
	}
	to, wanted := routeOf(src, s.family, k.scope)
	switch {
	case !wanted:
		s.listeners.retire(k)
	case !l.Route().Equal(to):
		l.Set(to)
		s.writes++
	}
}

// routeOf is the route of a listener; false if the source has none. Nil sources
// have none.
func routeOf(src program.Source, f dataplane.Family, scope dataplane.Scope) (relay.Route, bool) {
	programmed, ok := src.(source)
	if !ok || !programmed.at[scope].IsValid() {
		return relay.Route{}, false
	}
	return relay.RouteTo(programmed.sp, poolOf(programmed.sp, f, scope)), true
}

func (s *pass) closeRetired(names []dataplane.ServicePortName) error {
	n, err := s.listeners.closeRetired(names)
	s.writes += n
	return err
}

// sweep closes what no Sync has come to close, after one that failed.
func (s *pass) sweep() error {
	var names []dataplane.ServicePortName
	for k := range s.listeners.open {
		src, _ := s.program.Source(k.name)
		s.bring(k, src)
	}
	for n := range s.listeners.retired {
		names = append(names, n)
	}
	return s.closeRetired(names)
}
