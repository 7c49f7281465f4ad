package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Explain follows a new flow through all tables and sets of the kernel, those
// of others included. The flow is of a client that affinity does not know.
func (p *Plane) Explain(ctx context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	w, err := netfilter.ReadWalker(ctx, p.program.Kernel)
	if err != nil {
		return dataplane.Explanation{}, fmt.Errorf("explain %s: %w", f, err)
	}
	w.Forget = affinityPrefix(p.family)
	if w.IsLocal, err = p.local(); err != nil {
		return dataplane.Explanation{}, fmt.Errorf("explain %s: list the addresses of this node: %w", f, err)
	}
	ends, err := w.Follow(netfilter.PacketOf(f))
	if err != nil {
		return dataplane.Explanation{}, fmt.Errorf("explain %s: %w", f, err)
	}
	var e dataplane.Explanation
	for _, o := range ends {
		e.Outcomes = append(e.Outcomes, o.Explain())
		if note, ok := boundNote(w, f.Src.Addr(), o); ok {
			e.Notes = append(e.Notes, note)
		}
	}
	return e, nil
}

// boundNote tells if the client is bound to the endpoint that an outcome
// leads to.
func boundNote(w *netfilter.Walker, client netip.Addr, o netfilter.Outcome) (string, bool) {
	for _, s := range o.Steps {
		add := netfilter.ParseRule(s.Text).Target
		if add.Kind != netfilter.TargetAddSet || !strings.HasPrefix(add.Name, w.Forget) {
			continue
		}
		for _, e := range w.Sets[add.Name].Entries {
			if e.Net.Addr() == client {
				return fmt.Sprintf("session affinity binds %s to %s for %s more (ipset %s)",
					client, o.Packet.Destination, time.Duration(e.Timeout)*time.Second, add.Name), true
			}
		}
	}
	return "", false
}
