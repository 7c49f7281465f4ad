package ipvs

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// Name is what users call the mode.
const Name = "ipvs"

// Options are how the mode works on a node. The zero value is a good choice. Its
// JSON, of what an audit depends on, is what portwayctl saves and reads.
type Options struct {
	// Backend is netfilter.NFT or netfilter.Legacy; empty detects the one that
	// this node uses already.
	Backend string `json:"-"`
	// LockWait is how long a write waits for the xtables lock, which others
	// may hold; 0 is five seconds.
	LockWait time.Duration `json:"-"`
	// Scheduler is for Services that do not ask for another one, by its kernel
	// name; empty is wrr, which is rr where all weights are equal.
	Scheduler string `json:"scheduler,omitempty"`
	// ExcludeCIDRs are ranges in which virtual servers and addresses on the
	// device are left alone unless a Service has them.
	ExcludeCIDRs []netip.Prefix `json:"excludeCIDRs,omitempty"`
	// StrictARP makes the node answer ARP only for addresses of the device that
	// is asked, as MetalLB wants it.
	StrictARP bool `json:"strictARP,omitempty"`
	// Timeouts of connections that are idle; 0 leaves the kernel's.
	Timeouts kernel.Timeouts `json:"-"`
	// Drain bounds how long an endpoint that left keeps its established TCP
	// connections; 0 is 15 minutes.
	Drain time.Duration `json:"-"`
}

const (
	defaultLockWait  = 5 * time.Second
	defaultScheduler = "wrr"
)

func (o Options) scheduler() string    { return cmp.Or(o.Scheduler, defaultScheduler) }
func (o Options) wait() time.Duration  { return cmp.Or(o.LockWait, defaultLockWait) }
func (o Options) drain() time.Duration { return cmp.Or(o.Drain, defaultDrain) }

// Mode is the ipvs mode.
func Mode(o Options) dataplane.Mode {
	open := func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := o.open(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("open ipvs mode for %s: %w", f, err)
		}
		return p, nil
	}
	return dataplane.Mode{
		Name: Name, Probe: o.probe, Open: open, Cleanup: o.cleanup, Retire: o.retire,
		Lacks: []dataplane.Capability{dataplane.AffinityByPool, dataplane.AffinityExpiry, dataplane.RefuseWhileDraining},
	}
}

// probe tries IPVS, and every kind of rule and set that the mode writes.
func (o Options) probe(ctx context.Context, f dataplane.Family) error {
	if err := kernel.Support(ctx, f, o.scheduler()); err != nil {
		return err
	}
	h, err := netfilter.OpenHost(ctx, f, o.Backend, o.wait())
	if err != nil {
		return err
	}
	return netfilter.Probe(ctx, h, needs(f))
}

func (o Options) open(ctx context.Context, f dataplane.Family) (*Plane, error) {
	h, err := netfilter.OpenHost(ctx, f, o.Backend, o.wait())
	if err != nil {
		return nil, err
	}
	settings, err := o.settings()
	if err != nil {
		return nil, err
	}
	servers, err := kernel.Open(ctx)
	if err != nil {
		return nil, err
	}
	p := newPlane(f, o, h, servers, kernel.Dummy{})
	p.settings, p.local = settings, netfilter.LocalAddresses
	p.randomFully = h.RandomFully(ctx)
	p.warnings = h.Backend().WarnOfOthers(ctx, ownsChain)
	return p, nil
}

// excludes tells whether an address is in one of the ranges that are left alone.
func (o Options) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(o.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// NewSaved is a plane of which only what was saved is left. It can be explained
// and audited, and not synced.
func NewSaved(f dataplane.Family, o Options, k netfilter.Kernel, s kernel.Saved, isLocal func(netip.Addr) bool) (*Plane, error) {
	settings, err := s.Sysctls.Settings(o.StrictARP)
	if err != nil {
		return nil, err
	}
	p := newPlane(f, o, k, s.Servers, s.Device)
	p.sysctls, p.settings = s.Sysctls, settings
	p.local = func() (func(netip.Addr) bool, error) { return isLocal, nil }
	return p, nil
}

// Prepare sets the sysctls that the mode wants, for a process that may do more
// than the one that runs the mode: in a container without privileges they can
// only be read. Each error is something to warn of.
func Prepare(o Options) []error {
	settings, err := o.settings()
	if err != nil {
		return []error{err}
	}
	_, errs := kernel.Set(kernel.ProcSys(""), settings)
	return errs
}

func (o Options) settings() ([]kernel.Setting, error) {
	release, err := kernel.Running()
	if err != nil {
		return nil, err
	}
	return kernel.Settings(kernel.SettingOptions{Release: release, StrictARP: o.StrictARP}), nil
}

func newPlane(f dataplane.Family, o Options, k netfilter.Kernel, s kernel.Servers, d kernel.Device) *Plane {
	p := &Plane{
		family: f, options: o, netfilter: k, servers: s, device: d, sysctls: kernel.ProcSys(""),
		ranks: newRanks(f), unknown: make(map[string]bool), randomFully: true,
	}
	p.forget()
	return p
}

// needs are the mode's own rules, without the jumps among them, and sets.
func needs(f dataplane.Family) netfilter.Needs {
	n := netfilter.Needs{Rules: make(map[netfilter.Table][]netfilter.Rule)}
	for _, s := range sets() {
		n.Sets = append(n.Sets, s.empty(f))
	}
	fr := frame{family: f, mark: 1, dropInvalid: true}
	for id, rules := range fr.chains() {
		for _, r := range rules {
			if r.Target.Kind != netfilter.TargetJump && r.Target.Kind != netfilter.TargetGoto {
				n.Rules[id.table] = append(n.Rules[id.table], r)
			}
		}
	}
	return n
}
