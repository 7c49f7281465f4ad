package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// reading is what the kernel holds of ours.
type reading struct {
	chains map[chainID][]netfilter.Rule
	// hooks are the kernel's own chains, whole.
	hooks map[chainID][]netfilter.Rule
	sets  []netfilter.Set
	// noDevice: the device is not as it should be.
	noDevice bool
	locals   map[netip.Addr]kernel.Local
	servers  map[kernel.Key]*have
	// translated: rules of another mode send the flows of ClusterIPs somewhere.
	translated bool
	// leftovers: kube-proxy's chains or sets of the same mode are there.
	leftovers bool
	// claimed are the frontends that sets know, and clusterIPs those of them
	// whose virtual servers stand at a ClusterIP.
	claimed    []dataplane.FrontendKey
	clusterIPs map[kernel.Key]bool
}

func newReading() *reading {
	return &reading{
		chains: make(map[chainID][]netfilter.Rule), hooks: make(map[chainID][]netfilter.Rule),
		clusterIPs: make(map[kernel.Key]bool),
	}
}

// tables are those in which we have rules, in the order in which they are
// written.
func tables() []netfilter.Table {
	return []netfilter.Table{netfilter.Mangle, netfilter.Filter, netfilter.NAT}
}

// read reads all that is ours.
func (p *Plane) read(ctx context.Context) (*reading, error) {
	r := newReading()
	for _, h := range hooks() {
		r.hooks[h.id] = nil // a table of iptables-legacy that nobody has used has no chains
	}
	err := p.netfilter.Save(ctx, tables(), func(t netfilter.Table, c netfilter.Chain) error {
		r.chain(chainID{t, c.Name}, c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	if err := r.readSets(ctx, p.netfilter, p.family); err != nil {
		return nil, err
	}
	return r, r.readServers(ctx, p)
}

func (r *reading) chain(id chainID, c netfilter.Chain) {
	switch {
	case c.Policy != "":
		r.hooks[id] = slices.Clone(c.Rules)
	case id == chainID{netfilter.NAT, chainOthers}:
		r.translated = true
	case isLeftover(id.name):
		r.leftovers = true
	case ownsChain(id.name):
		r.chains[id] = slices.Clone(c.Rules)
	}
}

func (r *reading) readSets(ctx context.Context, k netfilter.Kernel, f dataplane.Family) error {
	all, err := k.Sets(ctx, func(name string) bool { return ownsSet(f, name) || isLeftoverSet(f, name) })
	if err != nil {
		return fmt.Errorf("read the ipsets: %w", err)
	}
	for _, s := range all {
		if isLeftoverSet(f, s.Name) {
			r.leftovers = true
			continue
		}
		r.sets = append(r.sets, s)
		r.claim(s, f)
	}
	return nil
}

// claim notes the frontends that a set knows, kube-proxy's too.
func (r *reading) claim(s netfilter.Set, f dataplane.Family) {
	for _, in := range []set{setClusterIP, setBalancer, setExternal, setFrontend} {
		if in.name(f) != s.Name {
			continue
		}
		for _, e := range s.Entries {
			r.claimed = append(r.claimed, dataplane.FrontendKey{Addr: e.Net.Addr(), Port: e.Port, Protocol: e.Protocol})
			if in == setClusterIP {
				r.clusterIPs[kernel.Key{Addr: e.Net.Addr(), Port: e.Port, Protocol: e.Protocol}] = true
			}
		}
	}
	for _, proto := range protocols() {
		if setNodePort.of(proto).name(f) != s.Name {
			continue
		}
		for _, e := range s.Entries {
			r.claimed = append(r.claimed, dataplane.FrontendKey{Addr: f.Unspecified(), Port: e.Port, Protocol: proto})
		}
	}
}

// readServers reads all virtual servers, and what the device makes local.
func (r *reading) readServers(ctx context.Context, p *Plane) error {
	if err := r.readLocals(ctx, p); err != nil {
		return err
	}
	list, err := p.servers.List(ctx, p.family)
	if err != nil {
		return fmt.Errorf("read the virtual servers: %w", err)
	}
	r.hold(list)
	return nil
}

// hold takes over virtual servers.
func (r *reading) hold(list []kernel.VirtualServer) {
	r.servers = make(map[kernel.Key]*have)
	for i := range list {
		r.servers[list[i].Key] = asHave(&list[i])
	}
}

// readLocals reads the addresses that the device makes local. One that is both
// bound and routed counts as bound, to be no longer so.
func (r *reading) readLocals(ctx context.Context, p *Plane) error {
	r.locals = make(map[netip.Addr]kernel.Local)
	locals, err := p.device.List(ctx, p.family)
	if errors.Is(err, kernel.ErrNoDevice) {
		r.noDevice, err = true, nil
	}
	if err != nil {
		return fmt.Errorf("read the addresses of %s: %w", kernel.DeviceName, err)
	}
	for _, l := range locals {
		if _, bound := r.locals[l.Prefix.Addr()]; l.Prefix.IsSingleIP() && !bound {
			r.locals[l.Prefix.Addr()] = l
		}
	}
	return nil
}

// keepOurs forgets what belongs to others, and returns their virtual servers.
// Ours are those that a Service wants, and those whose address the device makes
// local, because it is ours alone, or which our set of ClusterIPs knows: an alias
// is local, and a ClusterIP in the set, before it gets a virtual server, and as
// long as it has one. In excluded ranges only the former are.
func (r *reading) keepOurs(o Options, m *model) (others map[kernel.Key]*have) {
	others = make(map[kernel.Key]*have)
	for k, h := range r.servers {
		_, wanted := m.servers[k]
		_, local := r.locals[k.Addr]
		if !wanted && (o.excludes(k.Addr) || !local && !r.clusterIPs[k]) {
			others[k] = h
			delete(r.servers, k)
		}
	}
	for a := range r.locals {
		if m.locals[a] == 0 && o.excludes(a) {
			delete(r.locals, a)
		}
	}
	return others
}
