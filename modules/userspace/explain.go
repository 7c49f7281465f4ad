package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/relay"
)

// Explain follows a new flow through all tables and sets of the kernel, those of
// others included, and through the listener that it comes to.
func (p *reader) Explain(ctx context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	var e dataplane.Explanation
	w, err := netfilter.ReadWalker(ctx, p.program.Kernel)
	if err != nil {
		return e, fmt.Errorf("explain %s: %w", f, err)
	}
	if w.IsLocal, err = p.local(); err != nil {
		return e, fmt.Errorf("explain %s: %w", f, err)
	}
	all, err := w.Follow(netfilter.PacketOf(f))
	if err != nil {
		return e, fmt.Errorf("explain %s: %w", f, err)
	}
	table := p.table(func(client netip.Addr) bool { return client == f.Src.Addr() })
	for _, o := range all {
		ends, notes := relayedTo(table, f, o)
		e.Outcomes = append(e.Outcomes, ends...)
		e.Notes = append(e.Notes, notes...)
	}
	return e, nil
}

// relayedTo goes on where the kernel's rules end.
func relayedTo(table []relay.Listening, f dataplane.Flow, o netfilter.Outcome) ([]dataplane.Outcome, []string) {
	told := o.Explain()
	if told.Action != dataplane.Forward || !slices.ContainsFunc(o.Steps, leadsToRelay) {
		return []dataplane.Outcome{told}, nil
	}
	at := o.Packet.Destination
	l, ok := relay.Find(table, f.Protocol, at)
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
