package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// forever is an age at which nothing drains any more.
const forever = time.Duration(math.MaxInt64)

// cleanup removes what the mode has, and what kube-proxy left in it, at once.
func (o Options) cleanup(ctx context.Context, f dataplane.Family) error {
	_, err := o.retire(ctx, dataplane.Retirement{Family: f, Age: forever})
	return err
}

// retire is cleanup that lets established flows end first.
func (o Options) retire(ctx context.Context, r dataplane.Retirement) (flows int, err error) {
	hosts, err := netfilter.OpenAll(ctx, r.Family, o.wait())
	if err == nil {
		p := newPlane(r.Family, o, hosts[0], nil, kernel.Dummy{})
		p.local = netfilter.LocalAddresses
		flows, err = p.takeDown(ctx, r, hosts)
		if p.servers != nil {
			err = errors.Join(err, p.servers.Close())
		}
	}
	if err != nil {
		return flows, fmt.Errorf("clean up ipvs mode for %s: %w", r.Family, err)
	}
	return flows, nil
}

// removeDevice removes the device, and returns sysctls to what they were, when
// the other family does not need them.
func (p *Plane) removeDevice(ctx context.Context) error {
	err := p.device.Remove(ctx)
	if errors.Is(err, kernel.ErrInUse) {
		return nil
	}
	if err != nil || p.servers == nil {
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
