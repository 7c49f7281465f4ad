package netfilter

import (
	"net/netip"
	"slices"
)

// traversal is the way of one packet through one hook. A statistic match
// splits it, so there is a list of packets at every rule.
type traversal struct {
	*walk
	hook  Hook
	ended []Outcome
}

// maxDepth of jumps; the kernel refuses loops, and so does ReadDump.
const maxDepth = 64

// hook takes one packet through one hook.
func (w *walk) hook(h Hook, o Outcome) []Outcome {
	base, ok := w.Rules[h.Table][h.Chain]
	if !ok {
		return []Outcome{o}
	}
	t := traversal{walk: w, hook: h}
	for _, r := range t.chain(h.Chain, []Outcome{o}, 0) {
		if base.Policy == "DROP" {
			r.Verdict = Dropped
			r.pass(Step{Table: h.Table, Chain: h.Chain, Text: base.Policy})
		}
		t.ended = append(t.ended, r)
	}
	return t.ended
}

// pass adds a step; outcomes that were one once must not share it.
func (o *Outcome) pass(s Step) { o.Steps = append(slices.Clip(o.Steps), s) }

// chain takes packets through a chain and returns those that come back.
func (t *traversal) chain(name string, list []Outcome, depth int) []Outcome {
	var back []Outcome
	rules := t.Rules[t.hook.Table][name].Rules
	for i := range rules {
		var next []Outcome
		for _, o := range list {
			if t.visits--; t.tangled() {
				return nil
			}
			stay, returned := t.rule(name, i, &rules[i], o, depth)
			next = append(next, stay...)
			back = append(back, returned...)
		}
		if list = next; len(list) == 0 {
			break
		}
	}
	return append(back, list...)
}

// rule shows one packet one rule: some of it may stay in the chain, some
// return to the caller, some end.
func (t *traversal) rule(chain string, i int, r *Rule, o Outcome, depth int) (stay, back []Outcome) {
	step := Step{Table: t.hook.Table, Chain: chain, Number: i + 1}
	matched, note := t.match(r, &o.Packet)
	if matched == no {
		return []Outcome{o}, nil
	}
	t.visits -= len(o.Steps)
	step.Text = r.String()
	if step.Note = note; matched == unknown {
		o.pass(step)
		return []Outcome{o}, nil
	}
	if r.Probability != 0 && r.Probability < certain {
		t.ways--
		missed, share := o, float64(r.Probability)/certain
		missed.Probability *= 1 - share
		o.Probability *= share
		stay = append(stay, missed)
	}
	o.pass(step)
	more, back := t.target(&r.Target, o, depth)
	return append(more, stay...), back
}

// target does to a packet what a rule wants.
func (t *traversal) target(to *Target, o Outcome, depth int) (stay, back []Outcome) {
	p := &o.Packet
	switch to.Kind {
	case TargetJump, TargetGoto:
		return t.jump(to, o, depth)
	case TargetReturn:
		return nil, []Outcome{o}
	case TargetAccept:
	case TargetDrop:
		o.Verdict = Dropped
	case TargetReject:
		o.Verdict = Rejected
	case TargetDNAT:
		p.translate(to.To)
	case TargetNetmap:
		p.translate(netip.AddrPortFrom(mapInto(to.Net, p.Destination.Addr()), 0))
	case TargetRedirect:
		p.translate(netip.AddrPortFrom(p.self(), to.To.Port()))
	case TargetMasquerade:
		if t.MasqueradeAs != nil {
			p.Source = netip.AddrPortFrom(t.MasqueradeAs(*p), p.Source.Port())
		}
		p.States |= StateSNAT
	case TargetSNAT:
		p.Source = netip.AddrPortFrom(to.To.Addr(), p.Source.Port())
		p.States |= StateSNAT
	case TargetMark:
		p.Mark = p.Mark&^to.Mask ^ to.Value
		return []Outcome{o}, nil
	case TargetAddSet, TargetDelSet:
		t.write(to, p)
		return []Outcome{o}, nil
	case TargetMapMark:
		if e, ok := t.lookup(to.Name, to.Parts, p); ok {
			p.Mark = p.Mark&^e.MarkMask ^ e.Mark
		}
		return []Outcome{o}, nil
	default:
		return []Outcome{o}, nil
	}
	t.ended = append(t.ended, o)
	return nil, nil
}

// jump goes into another chain. The name may also be that of a target which
// this package does not know.
func (t *traversal) jump(to *Target, o Outcome, depth int) (stay, back []Outcome) {
	_, ok := t.Rules[t.hook.Table][to.Name]
	if !ok || depth == maxDepth {
		o.Steps[len(o.Steps)-1].Note = "not followed: " + to.Name + " is unknown"
		return []Outcome{o}, nil
	}
	came := t.chain(to.Name, []Outcome{o}, depth+1)
	if to.Kind == TargetGoto {
		return nil, came
	}
	return came, nil
}

// mapInto is the address of a prefix that ends in the same bits as another one.
func mapInto(to netip.Prefix, a netip.Addr) netip.Addr {
	mask := maskOf(to.Bits(), a.Is4()).AsSlice()
	bytes, base := a.AsSlice(), to.Addr().AsSlice()
	if len(base) != len(bytes) {
		return a
	}
	for i := range bytes {
		bytes[i] = base[i] | bytes[i]&^mask[i]
	}
	mapped, _ := netip.AddrFromSlice(bytes)
	return mapped
}

// translate changes the destination and remembers the first one. To conntrack
// a flow that goes where it went anyhow is not translated.
func (p *Packet) translate(to netip.AddrPort) {
	first, port := p.Destination, to.Port()
	if port == 0 {
		port = first.Port()
	}
	p.Destination = netip.AddrPortFrom(to.Addr(), port)
	if p.Destination == first {
		return
	}
	p.States |= StateDNAT
	if !p.OrigDst.IsValid() {
		p.OrigDst = first
	}
}

// self is an address of this node that a redirect leads to: loopback for what
// the node sends, some address of the incoming device for the rest.
func (p *Packet) self() netip.Addr {
	is4 := p.Destination.Addr().Is4()
	switch {
	case p.In != "" && is4:
		return netip.IPv4Unspecified()
	case p.In != "":
		return netip.IPv6Unspecified()
	case is4:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}
