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

// takedown takes the mode out of the kernel, but for what established flows need
// until they end: IPVS sees each of their packets, so that is the virtual server,
// with real servers that take no new flows, and its address. New flows do not
// come so far: the rules of what works here now translate them before. At other
// ports of the address they are refused, as they were.
type takedown struct {
	*Plane
	dataplane.Retirement
	hosts   []netfilter.Kernel // of all iptables back ends; the sets are common
	found   *reading
	isLocal func(netip.Addr) bool

	ops   []kernel.Op
	flows int
	// stay are the addresses that established flows need, and held those of
	// them that another device has.
	stay, held map[netip.Addr]bool
}

func (p *Plane) takeDown(ctx context.Context, r dataplane.Retirement, hosts []netfilter.Kernel) (flows int, err error) {
	t := &takedown{
		Plane: p, Retirement: r, hosts: hosts, found: newReading(),
		stay: make(map[netip.Addr]bool), held: make(map[netip.Addr]bool),
	}
	if err := t.look(ctx); err != nil {
		return 0, err
	}
	if r.InUse {
		return t.flows, t.changeServers(ctx)
	}
	if t.flows > 0 && len(t.ops) == 0 {
		return t.flows, nil // all is as it was left the last time
	}
	// Rules go first, so that none sends a flow to a virtual server that is gone.
	err = errors.Join(t.keepLocal(ctx), t.guard(ctx), t.removeRules(ctx), t.changeServers(ctx), t.removeLocals(ctx))
	if err != nil || t.flows > 0 {
		return t.flows, err
	}
	sets := netfilter.Owned{Set: func(name string) bool { return ownsSet(t.Family, name) || isLeftoverSet(t.Family, name) }}
	return 0, errors.Join(netfilter.Remove(ctx, hosts[0], sets), p.removeDevice(ctx))
}

// look reads what there is, and plans what becomes of virtual servers. Where
// there is no device, and no NodePort in kube-proxy's sets, none is ours.
func (t *takedown) look(ctx context.Context) error {
	if err := t.found.readSets(ctx, t.hosts[0], t.Family); err != nil {
		return err
	}
	if err := t.found.readLocals(ctx, t.Plane); err != nil {
		return err
	}
	if t.found.noDevice && len(t.found.locals) == 0 && !slices.ContainsFunc(t.found.claimed, dataplane.FrontendKey.IsNodePort) {
		return nil
	}
	if ok, err := t.openServers(ctx); !ok {
		return err
	}
	list, err := t.servers.List(ctx, t.Family)
	if err != nil {
		return fmt.Errorf("read the virtual servers: %w", err)
	}
	if t.isLocal, err = t.local(); err != nil {
		return err
	}
	t.found.hold(list)
	t.found.keepOurs(t.options, newModel(&dataplane.Node{}, t.translator(), false))
	for i := range list {
		if v := &list[i]; t.goes(v) {
			t.retireServer(v)
		}
	}
	return nil
}

// openServers tells whether there is IPVS.
func (t *takedown) openServers(ctx context.Context) (bool, error) {
	if t.servers != nil {
		return true, nil
	}
	servers, err := kernel.Open(ctx)
	if errors.Is(err, kernel.ErrNoIPVS) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.servers = servers
	return true, nil
}

// goes tells whether a virtual server is to be taken down. While the mode is in
// use its plane looks after all but kube-proxy's for NodePorts.
func (t *takedown) goes(v *kernel.VirtualServer) bool {
	_, ours := t.found.servers[v.Key]
	return ours && !t.InUse || t.isProxyNodePort(v)
}

// isProxyNodePort tells whether a virtual server is one that kube-proxy made for
// a NodePort: it has one at each address of the node, of a port that its set
// knows. Nothing else tells it from others'.
func (t *takedown) isProxyNodePort(v *kernel.VirtualServer) bool {
	a := v.Key.Addr
	_, onDevice := t.found.locals[a]
	port := dataplane.FrontendKey{Addr: t.Family.Unspecified(), Port: v.Key.Port, Protocol: v.Key.Protocol}
	return !onDevice && !t.options.excludes(a) && t.isLocal(a) && slices.Contains(t.found.claimed, port) &&
		!slices.ContainsFunc(v.Reals, func(r kernel.Real) bool { return !r.AsAdded() })
}

// retireServer plans what becomes of one virtual server.
func (t *takedown) retireServer(v *kernel.VirtualServer) {
	var ops []kernel.Op
	flows := 0
	for i := range v.Reals {
		switch r := &v.Reals[i]; {
		case !t.drains(v.Key, r):
			ops = append(ops, kernel.Op{Verb: kernel.DeleteReal, Key: v.Key, Real: r.Addr})
		default:
			flows += r.Active + r.Inactive
			if r.Weight != 0 {
				ops = append(ops, kernel.Op{Verb: kernel.SetReal, Key: v.Key, Real: r.Addr})
			}
		}
	}
	if flows == 0 {
		ops = []kernel.Op{{Verb: kernel.DeleteServer, Key: v.Key}}
	} else if _, onDevice := t.found.locals[v.Key.Addr]; onDevice {
		t.stay[v.Key.Addr] = true
	}
	t.flows += flows
	t.ops = append(t.ops, ops...)
}

// drains tells whether a real server has flows that go on. Those to an alias do
// without it.
func (t *takedown) drains(k kernel.Key, r *kernel.Real) bool {
	return k.Protocol == dataplane.TCP && !isAlias(k.Addr) && !t.isDrained(t.Age, *r)
}

func (t *takedown) changeServers(ctx context.Context) error {
	if len(t.ops) == 0 {
		return nil
	}
	refused, err := t.servers.Apply(ctx, t.ops)
	if err != nil {
		return err
	}
	var errs []error
	for i := range refused {
		if !isGone(refused[i]) && !errors.Is(refused[i].Err, kernel.ErrNoReal) {
			errs = append(errs, &refused[i])
		}
	}
	return errors.Join(errs...) // what is left is known to be ours the next time, too
}

// keepLocal makes the addresses that stay local by routes: where kube-proxy has
// bound them, they do not stay bound.
func (t *takedown) keepLocal(ctx context.Context) error {
	if len(t.stay) == 0 {
		return nil
	}
	if _, err := t.device.Ensure(ctx); err != nil {
		return err
	}
	var ops []kernel.LocalOp
	for a := range t.stay {
		ops = append(ops, kernel.LocalOp{Local: localRoute(a)})
	}
	refused, err := t.device.Apply(ctx, ops)
	var errs []error
	for i := range refused {
		if errors.Is(refused[i].Err, kernel.ErrHeld) {
			t.held[refused[i].Op.Local.Prefix.Addr()] = true
			continue
		}
		errs = append(errs, &refused[i])
	}
	return errors.Join(append(errs, err)...)
}

// removeLocals makes local no more what no established flow needs.
func (t *takedown) removeLocals(ctx context.Context) error {
	if len(t.found.locals) == 0 {
		return nil
	}
	list, err := t.device.List(ctx, t.Family)
	if err != nil {
		return fmt.Errorf("read the addresses of %s: %w", kernel.DeviceName, err)
	}
	var ops []kernel.LocalOp
	for _, l := range list {
		a := l.Prefix.Addr()
		if _, ours := t.found.locals[a]; ours && (l.Bound || !t.stay[a]) {
			ops = append(ops, kernel.LocalOp{Local: l, Delete: true})
		}
	}
	refused, err := t.device.Apply(ctx, ops)
	errs := []error{err}
	for i := range refused {
		errs = append(errs, &refused[i])
	}
	return errors.Join(errs...)
}
