package userspace

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
	"github.com/portway/portway/modules/relay"
)

// Name is what users call the mode.
const Name = "userspace"

// Options are how the mode works on a node. The zero value is a good choice.
type Options struct {
	// Backend is netfilter.NFT or netfilter.Legacy; empty detects the one that
	// this node uses already.
	Backend string
	// LockWait is how long a write waits for the xtables lock, which others
	// may hold; 0 is five seconds.
	LockWait time.Duration
	// Log hears of endpoints that do not answer; nil discards.
	Log *slog.Logger
}

const defaultLockWait = 5 * time.Second

// Mode is the userspace mode.
func Mode(o Options) dataplane.Mode {
	own := new(program.Tally)
	open := func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := o.open(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("open userspace mode for %s: %w", f, err)
		}
		p.program.Own = own
		return p, nil
	}
	return dataplane.Mode{
		Name: Name, Probe: o.probe, Open: open, Cleanup: o.cleanup,
		Lacks: []dataplane.Capability{
			dataplane.KeepSource, dataplane.KeepFlows, dataplane.ForwardSCTP, dataplane.StableKernelState,
		},
	}
}

// probe tries every kind of rule and set that the mode writes.
func (o Options) probe(ctx context.Context, f dataplane.Family) error {
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
	mark := new(atomic.Uint32)
	p := newPlane(f, h, relay.Config{Log: o.Log, Dial: relay.Dialer(mark.Load)}, mark)
	p.program.Chunk = h.Backend().ChainsPerRestore()
	p.warnings = h.Backend().WarnOfOthers(ctx, ownsAnywhere)
	return p, nil
}

func newPlane(f dataplane.Family, k netfilter.Kernel, cfg relay.Config, mark *atomic.Uint32) *Plane {
	p := &Plane{relay: relay.New(cfg), mark: mark, listeners: newListeners()}
	p.reader = newReader(f, k, netfilter.LocalAddresses, func(clients func(netip.Addr) bool) []relay.Listening {
		return p.relay.Table(clients)
	})
	return p
}

// cleanup removes what the mode has in either back end, and what kube-proxy left
// in it.
func (o Options) cleanup(ctx context.Context, f dataplane.Family) error {
	owned := netfilter.Owned{Chain: ownsChain, Set: func(name string) bool { return ownsSet(f, name) }}
	if err := netfilter.RemoveFromAll(ctx, f, owned, o.wait()); err != nil {
		return fmt.Errorf("clean up userspace mode for %s: %w", f, err)
	}
	return nil
}

func (o Options) wait() time.Duration { return cmp.Or(o.LockWait, defaultLockWait) }

func ownsAnywhere(chain string) bool {
	return ownsChain(netfilter.NAT, chain) || ownsChain(netfilter.Filter, chain)
}

// needs are a few rules that between them use all matches, targets and types of
// sets of the mode.
func needs(f dataplane.Family) netfilter.Needs {
	var n netfilter.Needs
	for _, s := range []set{setFrontend, setNodeIP, setHealth} {
		n.Sets = append(n.Sets, s.empty(f))
	}
	tcp := netfilter.Is(dataplane.TCP)
	n.Rules = map[netfilter.Table][]netfilter.Rule{
		netfilter.NAT: {
			{Protocol: tcp, DestPort: netfilter.Port(1), Comment: Name, Target: netfilter.DNAT(netip.AddrPortFrom(f.Loopback(), 1))},
			{Mark: netfilter.MatchMark(1, 1), Target: netfilter.Return()},
			{Sets: setNodeIP.matches(f, "dst"), Target: netfilter.Accept()},
		},
		netfilter.Filter: {
			{Conntrack: netfilter.ConntrackMatch{States: netfilter.StateDNAT}, Target: netfilter.Return()},
			{Protocol: tcp, Sets: setHealth.matches(f, "dst"), Target: netfilter.Reject(netfilter.TCPReset)},
			{DestType: netfilter.NotLocal, Sets: setFrontend.matches(f, "dst,dst"), Target: netfilter.Reject(netfilter.PortUnreachable(f))},
		},
	}
	return n
}
