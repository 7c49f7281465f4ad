package kerneltest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/ipvs/kernel"
)

func (s *Servers) apply(op kernel.Op) error {
	v := s.servers[op.Key]
	switch {
	case op.Verb == kernel.AddServer && v != nil:
		return kernel.ErrExists
	case op.Verb != kernel.AddServer && v == nil:
		return kernel.ErrNoServer
	case op.Verb == kernel.AddServer:
		return s.add(op)
	case op.Verb == kernel.SetServer:
		if !slices.Contains(s.known, op.Server.Scheduler) {
			return kernel.ErrScheduler
		}
		v.Server = asKept(op.Server)
		return nil
	case op.Verb == kernel.DeleteServer:
		delete(s.servers, op.Key)
		return nil
	}
	return v.apply(op)
}

func (s *Servers) add(op kernel.Op) error {
	if !slices.Contains(s.known, op.Server.Scheduler) {
		return kernel.ErrScheduler
	}
	s.servers[op.Key] = &server{Server: asKept(op.Server), reals: make(map[string]kernel.Real)}
	return nil
}

// asKept is what the kernel gives back.
func asKept(s kernel.Server) kernel.Server {
	s.Persist = wholeSeconds(s.Persist)
	return s
}

func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// apply makes a change to a real server.
func (v *server) apply(op kernel.Op) error {
	name := op.Real.String()
	r, ok := v.reals[name]
	switch {
	case op.Verb != kernel.DeleteReal && op.Weight < 0:
		return kernel.ErrWeight
	case op.Verb == kernel.AddReal && ok:
		return kernel.ErrExists
	case op.Verb == kernel.AddReal && !isHost(op.Real.Addr()):
		return kernel.ErrAddress
	case op.Verb != kernel.AddReal && !ok:
		return kernel.ErrNoReal
	case op.Verb == kernel.DeleteReal:
		delete(v.reals, name)
		return nil
	}
	v.reals[name] = kernel.Real{Addr: op.Real, Weight: op.Weight, Active: r.Active, Inactive: r.Inactive}
	return nil
}

// isHost tells whether the kernel takes an address for that of a host.
func isHost(a netip.Addr) bool {
	switch {
	case a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return false
	case a.Is6():
		return !a.IsLinkLocalUnicast()
	}
	return true
}
