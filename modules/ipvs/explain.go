package ipvs

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// Explain follows a new flow through all tables and sets of the kernel, those
// of others included, and through its virtual server. The flow is of a client
// that affinity does not know; how the scheduler chooses is told by weight.
func (p *Plane) Explain(ctx context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	e, err := p.explain(ctx, f)
	if err != nil {
		return dataplane.Explanation{}, fmt.Errorf("explain %s: %w", f, err)
	}
	return e, nil
}

func (p *Plane) explain(ctx context.Context, f dataplane.Flow) (e dataplane.Explanation, err error) {
	w, err := netfilter.ReadWalker(ctx, p.netfilter)
	if err != nil {
		return e, err
	}
	if w.IsLocal, err = p.isLocal(ctx); err != nil {
		return e, err
	}
	b := balancer{ctx: ctx, servers: p.servers, seen: make(map[kernel.Key]kernel.VirtualServer)}
	w.Balance = b.balance
	ends, err := w.Follow(netfilter.PacketOf(f))
	if err != nil {
		return e, err
	}
	for _, o := range ends {
		e.Outcomes = append(e.Outcomes, o.Explain())
	}
	e.Notes = b.notes
	return e, b.err
}

// isLocal tells which addresses lead to this node: its own and those that the
// device makes local.
func (p *Plane) isLocal(ctx context.Context) (func(netip.Addr) bool, error) {
	own, err := p.local()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this node: %w", err)
	}
	var r reading
	if err := r.readLocals(ctx, p); err != nil {
		return nil, err
	}
	return func(a netip.Addr) bool {
		_, ours := r.locals[a]
		return ours || own(a)
	}, nil
}

// balancer tells what virtual servers make of a packet.
type balancer struct {
	ctx     context.Context //nolint:containedctx // of one walk, whose callback has none
	servers kernel.Reader
	seen    map[kernel.Key]kernel.VirtualServer
	notes   []string
	err     error
}

func (b *balancer) balance(p netfilter.Packet) (netfilter.Balanced, bool) {
	k := kernel.Key{Protocol: p.Protocol, Addr: p.Destination.Addr(), Port: p.Destination.Port()}
	if !p.Protocol.HasPorts() || b.err != nil {
		return netfilter.Balanced{}, false
	}
	v, known := b.seen[k]
	if !known {
		var err error
		if v, _, err = b.servers.Get(b.ctx, k); err != nil {
			b.err = err
			return netfilter.Balanced{}, false
		}
		b.seen[k] = v
		b.note(&v)
	}
	if v.Key != k { // there is none
		return netfilter.Balanced{}, false
	}
	return balanced(&v), true
}

// balanced are the real servers that take new flows.
func balanced(v *kernel.VirtualServer) netfilter.Balanced {
	all := netfilter.Balanced{Place: "virtual server " + v.String()}
	sum := 0
	for _, r := range v.Reals {
		sum += r.Weight
	}
	for _, r := range v.Reals {
		if r.Weight > 0 {
			all.Choices = append(all.Choices, netfilter.Choice{
				To: r.Addr, Share: float64(r.Weight) / float64(sum), Detail: "real server " + r.String(),
			})
		}
	}
	return all
}

// note tells what may bind a client otherwise.
func (b *balancer) note(v *kernel.VirtualServer) {
	if v.Server.Persist > 0 {
		b.notes = append(b.notes, fmt.Sprintf(
			"session affinity of %s keeps a client that %s knows with its endpoint", v.Server.Persist, v.Key))
	}
	for _, r := range v.Reals {
		if r.Weight == 0 {
			b.notes = append(b.notes, fmt.Sprintf("%s of %s drains: it takes no new flows%s", r.Addr, v.Key, connections(r)))
		}
	}
}

// connections tells how many a real server has, where that is known.
func connections(r kernel.Real) string {
	if r.Active == kernel.NotCounted {
		return ""
	}
	return fmt.Sprintf(" and has %d connections (%d not established)", r.Active+r.Inactive, r.Inactive)
}
