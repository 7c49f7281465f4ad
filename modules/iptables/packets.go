package iptables

import (
	"context"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// counting is a kernel whose rules count packets.
type counting interface {
	Counted(ctx context.Context, t netfilter.Table, chain string) ([]netfilter.CountedRule, error)
}

// packets reads what rules have counted; nil if nobody counts. Services do not
// depend on it, so an error only leaves it out.
func (p *Plane) packets(ctx context.Context) map[string]uint64 {
	k, ok := p.program.Kernel.(counting)
	if !ok {
		return nil
	}
	rules, err := k.Counted(ctx, netfilter.Filter, chainForward)
	if err != nil {
		return nil
	}
	for _, r := range rules {
		if r.Conntrack.States == netfilter.StateInvalid && r.Target.Kind == netfilter.TargetDrop {
			return map[string]uint64{dataplane.InvalidDropped: r.Packets}
		}
	}
	return nil
}
