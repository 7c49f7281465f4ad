package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Name is what users call the mode.
const Name = "iptables"

// Options are how the mode works on a node. The zero value is a good choice.
type Options struct {
	// Backend is netfilter.NFT or netfilter.Legacy; empty detects the one that
	// this node uses already.
	Backend string
	// LockWait is how long a write waits for the xtables lock, which others
	// may hold; 0 is five seconds.
	LockWait time.Duration
}

const defaultLockWait = 5 * time.Second

// Mode is the iptables mode.
func Mode(o Options) dataplane.Mode {
	open := func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := o.open(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("open iptables mode for %s: %w", f, err)
		}
		return p, nil
	}
	return dataplane.Mode{Name: Name, Probe: o.probe, Open: open, Cleanup: o.cleanup}
}

// host finds the back end.
func (o Options) host(ctx context.Context, f dataplane.Family) (*netfilter.Host, error) {
	if o.Backend == "" {
		b, err := netfilter.Detect(ctx, f)
		return netfilter.NewHost(b, o.wait()), err
	}
	all, err := netfilter.Backends(ctx, f)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(all))
	for i, b := range all {
		if b.Name == o.Backend {
			return netfilter.NewHost(b, o.wait()), nil
		}
		names[i] = b.Name
	}
	return nil, fmt.Errorf("the iptables back end %q is not installed: there is %s", o.Backend, strings.Join(names, " and "))
}

// probe tries every kind of rule and set that the mode writes.
func (o Options) probe(ctx context.Context, f dataplane.Family) error {
	h, err := o.host(ctx, f)
	if err != nil {
		return err
	}
	return netfilter.Probe(ctx, h, needs(f))
}

func (o Options) open(ctx context.Context, f dataplane.Family) (*Plane, error) {
	h, err := o.host(ctx, f)
	if err != nil {
		return nil, err
	}
	var k netfilter.Kernel = h
	if h.Backend().Name == netfilter.NFT {
		k = nftHost{h}
	}
	p := newPlane(f, k, localAddresses)
	p.randomFully = h.RandomFully(ctx)
	p.chunk = h.Backend().ChainsPerRestore()
	left, err := h.Backend().LeftInOthers(ctx, ownsAnywhere)
	if err != nil {
		p.warnings = append(p.warnings, fmt.Sprintf("whether another iptables back end holds rules of ours is not known: %v", err))
	}
	if len(left) > 0 {
		p.warnings = append(p.warnings, fmt.Sprintf(
			"iptables-%s is in use for %s, but another back end holds rules that packets pass too: %s",
			h.Backend().Name, f, strings.Join(left, ", ")))
	}
	return p, nil
}

// cleanup removes what the mode has in either back end, and what kube-proxy
// left in it.
func (o Options) cleanup(ctx context.Context, f dataplane.Family) error {
	all, err := netfilter.Backends(ctx, f)
	if err != nil {
		return fmt.Errorf("clean up iptables mode for %s: %w", f, err)
	}
	var errs []error
	for _, b := range all {
		errs = append(errs, netfilter.Remove(ctx, netfilter.NewHost(b, o.wait()), netfilter.Owned{Chain: ownsChain}))
	}
	// Sets belong to no back end, and go when no rule names them any more.
	sets := netfilter.Owned{Set: func(name string) bool { return ownsSet(f, name) }}
	errs = append(errs, netfilter.Remove(ctx, netfilter.NewHost(all[0], o.wait()), sets))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up iptables mode for %s: %w", f, err)
	}
	return nil
}

func (o Options) wait() time.Duration { return cmp.Or(o.LockWait, defaultLockWait) }

func ownsAnywhere(chain string) bool {
	return ownsChain(netfilter.NAT, chain) || ownsChain(netfilter.Filter, chain)
}

// NewPlane is a plane on another kernel than this machine's, such as saved state
// that is to be explained ([netfilter.Dump]). The kernel must know fully random
// ports for masquerading, as those since Linux 3.13 do.
func NewPlane(f dataplane.Family, k netfilter.Kernel, isLocal func(netip.Addr) bool) *Plane {
	p := newPlane(f, k, func() (func(netip.Addr) bool, error) { return isLocal, nil })
	p.randomFully = true
	return p
}

// newPlane is a plane on some kernel. local lists the node's addresses.
func newPlane(f dataplane.Family, k netfilter.Kernel, local func() (func(netip.Addr) bool, error)) *Plane {
	p := &Plane{family: f, kernel: k, local: local}
	p.forget()
	return p
}

// localAddresses asks this network namespace which addresses it has.
func localAddresses() (func(netip.Addr) bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	has := make(map[netip.Addr]bool)
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			has[p.Addr().Unmap()] = true
		}
	}
	return func(a netip.Addr) bool { return has[a] }, nil
}

// needs are a few rules that between them use all matches, targets and types
// of sets of the mode.
func needs(f dataplane.Family) netfilter.Needs {
	fr := frame{family: f, mark: 1}
	affinity := newAffinitySet(affinityPrefix(f)+"PROBE", f)
	n := netfilter.Needs{Sets: []netfilter.Set{affinity}}
	for _, s := range []set{setNodeIP, setReject, setLoopBack, setHealth} {
		n.Sets = append(n.Sets, s.empty(f))
	}
	isTCP := netfilter.Is(dataplane.TCP)
	n.Rules = map[netfilter.Table][]netfilter.Rule{
		netfilter.NAT: {
			{Comment: Name, Target: netfilter.OrMark(fr.mark)},
			{Mark: netfilter.MatchMark(fr.mark, fr.mark), Target: netfilter.Masquerade(false)},
			{Protocol: isTCP, Probability: share(1, 2), Target: netfilter.DNAT(netip.AddrPortFrom(f.Loopback(), 1))},
			{SourceType: netfilter.Local, Target: netfilter.AddSet(affinity.Name, "src", 1)},
			{Sets: fr.in(setNodeIP, "dst", false), Target: netfilter.Accept()},
			{
				Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT},
				Sets:      fr.in(setLoopBack, "dst,dst,src", false), Target: netfilter.Return(),
			},
		},
		netfilter.Filter: {
			{Protocol: isTCP, Sets: fr.in(setHealth, "dst", false), Target: netfilter.Reject(netfilter.TCPReset)},
			{Sets: fr.in(setReject, "dst,dst", false), Target: netfilter.Reject(netfilter.PortUnreachable(f))},
		},
	}
	return n
}
