package iptables

import (
	"context"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// Plane makes the Services of one family work by rules of iptables.
type Plane struct {
	family      dataplane.Family
	program     *program.Program
	local       func() (func(netip.Addr) bool, error)
	randomFully bool
	warnings    []string
	// translator is that of the node as the last Sync knew it.
	translator *translator
}

// Sync makes the kernel equal to the wanted snapshot.
func (p *Plane) Sync(ctx context.Context, req dataplane.SyncRequest) (dataplane.Report, error) {
	var warnings []string
	if p.program.IsFresh() {
		warnings = slices.Clone(p.warnings)
	}
	wish := p.wish(req)
	wish.Anew = p.translator != nil && !p.translator.local.Equal(netfilter.LocalityOf(req.Want.Node(), p.family))
	if p.translator == nil || wish.Anew {
		p.translator = newTranslator(req.Want.Node(), p.family)
	}
	wish.Source = p.translator.source
	report, err := p.program.Sync(ctx, wish)
	report.Warnings = warnings
	if err == nil && report.Full {
		report.Packets = p.packets(ctx)
	}
	return report, err
}

// Audit reads the kernel and says how it differs from what the snapshot wants.
func (p *Plane) Audit(ctx context.Context, want *dataplane.Snapshot) ([]dataplane.Difference, error) {
	wish := p.wish(dataplane.SyncRequest{Want: want})
	wish.Source = newTranslator(want.Node(), p.family).source
	return p.program.Audit(ctx, wish)
}

// wish is what a snapshot wants, all but its ServicePorts.
func (p *Plane) wish(req dataplane.SyncRequest) program.Wish {
	w := program.Wish{SyncRequest: req, Frame: newFrame(req.Want.Node(), p.family, p.randomFully).chains()}
	seen := &claims{family: p.family}
	w.Observe = seen.observe
	w.Claimed = func([]netfilter.Set) []dataplane.FrontendKey { return seen.keys }
	return w
}

func newTranslator(n *dataplane.Node, f dataplane.Family) *translator {
	return &translator{f, newLocality(n, f)}
}

func (t *translator) source(sp *dataplane.ServicePort) (program.Source, error) {
	return source{t, sp}, nil
}

// Close forgets what it knows; the rules stay and go on forwarding.
func (p *Plane) Close() error {
	p.program.Forget()
	return nil
}
