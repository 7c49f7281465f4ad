package iptables

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
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
	own := new(program.Tally)
	open := func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := o.open(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("open iptables mode for %s: %w", f, err)
		}
		p.program.Own = own
		return p, nil
	}
	return dataplane.Mode{Name: Name, Probe: o.probe, Open: open, Cleanup: o.cleanup}
}

func (o Options) host(ctx context.Context, f dataplane.Family) (*netfilter.Host, error) {
	return netfilter.OpenHost(ctx, f, o.Backend, o.wait())
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
	p := newPlane(f, h, netfilter.LocalAddresses)
	p.randomFully = h.RandomFully(ctx)
	p.program.Chunk = h.Backend().ChainsPerRestore()
	p.warnings = h.Backend().WarnOfOthers(ctx, ownsAnywhere)
	return p, nil
}

// cleanup removes what the mode has in either back end, and what kube-proxy
// left in it.
func (o Options) cleanup(ctx context.Context, f dataplane.Family) error {
	owned := netfilter.Owned{Chain: ownsChain, Set: func(name string) bool { return ownsSet(f, name) }}
	if err := netfilter.RemoveFromAll(ctx, f, owned, o.wait()); err != nil {
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
	return &Plane{family: f, program: program.New(layout(f), k, 0), local: local}
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
