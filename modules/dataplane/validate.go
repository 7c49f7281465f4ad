package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// validate checks what the types cannot say. A plane may rely on it.
func (sp *ServicePort) validate() error {
	if !sp.Name.Protocol.HasPorts() {
		return fmt.Errorf("protocol %s carries no Services", sp.Name.Protocol)
	}
	if sp.Affinity < 0 {
		return fmt.Errorf("affinity timeout %s is negative", sp.Affinity)
	}
	type slot struct {
		f Family
		s Scope
	}
	pools := make(map[slot]bool)
	for _, p := range sp.Pools {
		if pools[slot{p.Family, p.Scope}] {
			return fmt.Errorf("two pools of scope %s for %s", p.Scope, p.Family)
		}
		pools[slot{p.Family, p.Scope}] = true
		if err := p.validate(); err != nil {
			return fmt.Errorf("pool %s %s: %w", p.Family, p.Scope, err)
		}
	}
	keys := make(map[FrontendKey]bool)
	for _, f := range sp.Frontends {
		k := f.Key(sp.Name.Protocol)
		if keys[k] {
			return fmt.Errorf("%s %s is listed twice", f.Kind, k)
		}
		keys[k] = true
		if err := f.validate(sp); err != nil {
			return fmt.Errorf("%s %s: %w", f.Kind, k, err)
		}
	}
	return nil
}

func (p *Pool) validate() error {
	if len(p.Endpoints) == 0 {
		return errors.New("no endpoints")
	}
	for i, e := range p.Endpoints {
		switch {
		case FamilyOf(e.Addr.Addr()) != p.Family || e.Addr.Addr().Is4In6():
			return fmt.Errorf("endpoint %s is not %s", e.Addr, p.Family)
		case e.Addr.Port() == 0:
			return fmt.Errorf("endpoint %s has port 0", e.Addr)
		case e.Weight == 0:
			return fmt.Errorf("endpoint %s has weight 0", e.Addr)
		case p.Scope == Local && !e.Local:
			return fmt.Errorf("endpoint %s is not on this node", e.Addr)
		case i > 0 && p.Endpoints[i-1].Addr.Compare(e.Addr) >= 0:
			return fmt.Errorf("endpoint %s is out of order or doubled", e.Addr)
		}
	}
	return nil
}

// Find returns the pool's endpoint with that address and port.
func (p *Pool) Find(a netip.AddrPort) (Endpoint, bool) {
	i, ok := slices.BinarySearchFunc(p.Endpoints, a, func(e Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	if !ok {
		return Endpoint{}, false
	}
	return p.Endpoints[i], true
}

func (f *Frontend) validate(sp *ServicePort) error {
	switch {
	case f.Port == 0:
		return errors.New("port 0")
	case f.Family != IPv4 && f.Family != IPv6:
		return fmt.Errorf("unknown family %d", f.Family)
	case f.Kind == NodePort && f.Addr.IsValid():
		return fmt.Errorf("a NodePort has no address of its own, not %s", f.Addr)
	case f.Kind != NodePort && (FamilyOf(f.Addr) != f.Family || f.Addr.Is4In6() || f.Addr.IsUnspecified()):
		return fmt.Errorf("address %s is not a usable %s address", f.Addr, f.Family)
	}
	for _, o := range Origins() {
		if err := f.Routes[o].validate(f, sp); err != nil {
			return fmt.Errorf("route from %s: %w", o, err)
		}
	}
	return nil
}

func (r Route) validate(f *Frontend, sp *ServicePort) error {
	switch {
	case r.Action == Forward && !slices.Contains(sp.Pools, r.Pool):
		return errors.New("forwards to a pool that the ServicePort does not have")
	case r.Action == Forward && r.Pool.Family != f.Family:
		return fmt.Errorf("forwards to a pool of %s", r.Pool.Family)
	case r.Action != Forward && r.Action != Reject && r.Action != Drop:
		return fmt.Errorf("action %s", r.Action)
	}
	return nil
}
