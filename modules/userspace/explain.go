package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Explain follows a new flow through all tables and sets of the kernel, those of
// others included, and through the listener that it comes to.
func (p *Plane) Explain(ctx context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	var e dataplane.Explanation
	w, err := netfilter.ReadWalker(ctx, p.program.Kernel)
	if err != nil {
		return e, fmt.Errorf("explain %s: %w", f, err)
	}
	if w.IsLocal, err = p.local(); err != nil {
		return e, fmt.Errorf("explain %s: %w", f, err)
	}
	for _, o := range w.Follow(netfilter.PacketOf(f)) {
		ends, notes := p.relayed(f, o)
		e.Outcomes = append(e.Outcomes, ends...)
		e.Notes = append(e.Notes, notes...)
	}
	return e, nil
}

// relayed goes on where the kernel's rules end.
func (p *Plane) relayed(f dataplane.Flow, o netfilter.Outcome) ([]dataplane.Outcome, []string) {
	told := o.Explain()
	if told.Action != dataplane.Forward || !slices.ContainsFunc(o.Steps, leadsToRelay) {
		return []dataplane.Outcome{told}, nil
	}
	at := o.Packet.Destination
	l, ok := p.listeners.at[place{f.Protocol, at}]
	if !ok {
		told.Action, told.Endpoint = dataplane.Reject, netip.AddrPort{}
		told.Steps = append(told.Steps, dataplane.Step{Object: "relay", Detail: "this process does not listen at " + at.String()})
		return []dataplane.Outcome{told}, nil
	}
	ends, notes := l.Explain(f, told.Steps)
	for i := range ends {
		ends[i].Probability *= told.Probability
	}
	return ends, notes
}

// leadsToRelay tells whether a step is that of the chain of a pool.
func leadsToRelay(s netfilter.Step) bool {
	return s.Table == netfilter.NAT && strings.HasPrefix(s.Chain, prefixPool)
}
