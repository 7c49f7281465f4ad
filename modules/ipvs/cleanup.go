package ipvs

import (
	"context"
	"errors"
	"fmt"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// cleanup removes what the mode has, and what kube-proxy left in it: rules
// first, so that no flow is sent to a virtual server that is gone.
func (o Options) cleanup(ctx context.Context, f dataplane.Family) error {
	owned := netfilter.Owned{
		Chain: func(_ netfilter.Table, name string) bool { return ownsChain(name) },
		Set:   func(name string) bool { return ownsSet(f, name) || isLeftoverSet(f, name) },
	}
	err := errors.Join(netfilter.RemoveFromAll(ctx, f, owned, o.wait()), o.removeServers(ctx, f))
	if err != nil {
		return fmt.Errorf("clean up ipvs mode for %s: %w", f, err)
	}
	return nil
}

// removeServers removes virtual servers, addresses, and the device when no
// family needs it any more. Without the device there is nothing of ours.
func (o Options) removeServers(ctx context.Context, f dataplane.Family) error {
	device := kernel.Dummy{}
	if _, err := device.List(ctx, f); errors.Is(err, kernel.ErrNoDevice) {
		return device.Remove(ctx)
	}
	servers, err := kernel.Open(ctx)
	if err != nil {
		return err
	}
	p := newPlane(f, o, nil, servers, device)
	err = p.removeAll(ctx)
	return errors.Join(err, servers.Close())
}

func (p *Plane) removeAll(ctx context.Context) error {
	r := &reading{}
	if err := r.readServers(ctx, p); err != nil {
		return err
	}
	nothing := newModel(&dataplane.Node{}, p.translator(), false)
	r.keepOurs(p.options.ExcludeCIDRs, nothing)
	var ops []kernel.Op
	for k := range r.servers {
		ops = append(ops, kernel.Op{Verb: kernel.DeleteServer, Key: k})
	}
	refused, err := p.servers.Apply(ctx, ops)
	if err != nil {
		return err
	}
	var errs []error
	for i := range refused {
		if !isGone(refused[i]) {
			errs = append(errs, &refused[i])
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // what is left is known to be ours by its address
	}
	var remove []kernel.LocalOp
	for _, l := range r.locals {
		remove = append(remove, kernel.LocalOp{Local: l, Delete: true})
	}
	kept, err := p.device.Apply(ctx, remove)
	if err != nil {
		return err
	}
	for i := range kept {
		errs = append(errs, &kept[i])
	}
	return errors.Join(append(errs, p.removeDevice(ctx))...)
}

// removeDevice removes the device, and returns sysctls to what they were, when
// the other family does not need them.
func (p *Plane) removeDevice(ctx context.Context) error {
	err := p.device.Remove(ctx)
	if errors.Is(err, kernel.ErrInUse) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range dataplane.Families() {
		if left, err := p.servers.List(ctx, f); err != nil || len(left) > 0 {
			return err // others use IPVS, with these settings by now
		}
	}
	settings, err := p.options.settings()
	if err != nil {
		return err
	}
	return kernel.Restore(p.sysctls, settings)
}
