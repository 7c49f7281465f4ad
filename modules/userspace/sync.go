package userspace

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
	"github.com/portway/portway/modules/relay"
)

// Plane makes the Services of one family work by listeners and rules.
type Plane struct {
	reader
	relay *relay.Relay
	// mark is on what the relay sends, for the rules to know it.
	mark     *atomic.Uint32
	warnings []string

	listeners listeners
	// translator is that of the node as the last Sync knew it, and listenAt
	// where its listeners are; invalid if the node has no address.
	translator *translator
	listenAt   netip.Addr
}

// Sync opens listeners, makes the rules lead to them, tells them their
// endpoints, and closes those that nothing leads to any more.
func (p *Plane) Sync(ctx context.Context, req dataplane.SyncRequest) (dataplane.Report, error) {
	var warnings []string
	if p.program.IsFresh() {
		warnings = slices.Clone(p.warnings)
	}
	s := &pass{Plane: p}
	wish := p.wish(req)
	wish.Anew = p.look(req.Want.Node())
	wish.Source = func(sp *dataplane.ServicePort) (program.Source, error) { return s.source(ctx, sp) }
	wish.Observe, wish.Settle = s.observe, s.settle
	report, err := p.program.Sync(ctx, wish)
	if err == nil && report.Full {
		err = s.sweep()
	}
	report.Warnings = append(warnings, s.warnings...)
	report.Writes += s.writes
	return report, err
}

// wish is what a snapshot wants, all but its ServicePorts.
func (p *Plane) wish(req dataplane.SyncRequest) program.Wish {
	return program.Wish{
		SyncRequest: req, Frame: newFrame(req.Want.Node(), p.family),
		Claimed: func(sets []netfilter.Set) []dataplane.FrontendKey { return claimed(sets, p.family) },
	}
}

// look takes over what is new of the node, and tells whether ServicePorts must
// be translated anew.
func (p *Plane) look(n *dataplane.Node) bool {
	p.mark.Store(n.Mark)
	t := newTranslator(n, p.family)
	at, _ := listenAddr(n, p.family)
	if p.translator != nil && *t == *p.translator && at == p.listenAt {
		return false
	}
	p.translator, p.listenAt = t, at
	p.listeners.moveTo(at)
	return true
}

// Close stops listening. The rules stay, and what they redirect is refused until
// the next process listens; connections go on until this one ends.
func (p *Plane) Close() error {
	p.program.Forget()
	return p.listeners.closeAll()
}

// Table is what listens, to be saved. It is safe for concurrent use.
func (p *Plane) Table() []relay.Listening { return p.relay.Table(relay.Everybody) }

// Relays tells whether a destination is a listener of the plane, to which
// conntrack sees the flows of Services go. It is safe for concurrent use.
func (p *Plane) Relays(protocol dataplane.Protocol, to netip.AddrPort) bool {
	return p.relay.Listens(protocol, to)
}
