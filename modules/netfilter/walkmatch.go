package netfilter

import (
	"net/netip"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// truth is whether a rule matches. A rule of which a part is not understood
// still does not match if another part does not.
type truth uint8

const (
	no truth = iota
	yes
	unknown
)

func is(b bool) truth {
	if b {
		return yes
	}
	return no
}

// match says whether a rule matches, leaving chance aside, and what has to be
// told about it.
func (w *Walker) match(r *Rule, p *Packet) (truth, string) {
	if !r.Source.Contains(p.Source.Addr()) || !r.Destination.Contains(p.Destination.Addr()) ||
		!r.In.matches(p.In) || !r.Protocol.matches(p.Protocol) ||
		!r.SourcePort.matches(p.Source.Port()) || !r.DestPort.matches(p.Destination.Port()) ||
		!r.Mark.matches(p.Mark) || !r.Conntrack.matches(p) ||
		!w.addrType(r.SourceType, p.Source.Addr()) || !w.addrType(r.DestType, p.Destination.Addr()) {
		return no, ""
	}
	result, note := yes, ""
	doubt := func(t truth, why string) {
		if t == no || result == yes {
			result = t
		}
		if t == unknown {
			note = why
		}
	}
	doubt(w.out(r.Out, p), "passed over: nobody can say where the packet leaves")
	for i := range r.Sets {
		doubt(w.inSet(&r.Sets[i], p), "passed over: the set is not known")
	}
	if r.LimitIfaceIn {
		doubt(unknown, "passed over: nobody can say which addresses the device has")
	}
	if r.Opaque && result != no {
		return unknown, "passed over: not understood"
	}
	return result, note
}

func (m IfaceMatch) matches(device string) bool {
	if m.Name == "" {
		return true
	}
	prefix, isPrefix := strings.CutSuffix(m.Name, "+")
	if isPrefix {
		return strings.HasPrefix(device, prefix) != m.Not
	}
	return (device == m.Name) != m.Not
}

// out matches the outgoing device. Without a router it is not known, except
// for what goes to this node.
func (w *Walker) out(m IfaceMatch, p *Packet) truth {
	if m.Name == "" || p.Out != "" || w.OutInterface != nil {
		return is(m.matches(p.Out))
	}
	return unknown
}

func (m ProtocolMatch) matches(p dataplane.Protocol) bool {
	return m.Number == 0 || (m.Number == p) != m.Not
}

func (m PortMatch) matches(port uint16) bool {
	return m.Last == 0 || (m.First <= port && port <= m.Last) != m.Not
}

func (m MarkMatch) matches(mark uint32) bool {
	return m.Mask == 0 || (mark&m.Mask == m.Value) != m.Not
}

func (m *ConntrackMatch) matches(p *Packet) bool {
	if m.States != 0 && (m.States&p.States != 0) == m.NotStates {
		return false
	}
	orig := p.OrigDst
	if !orig.IsValid() {
		orig = p.Destination
	}
	if m.OrigDst.IsValid() && !m.OrigDst.Contains(orig.Addr()) {
		return false
	}
	return m.OrigDstPort.matches(orig.Port())
}

func (w *Walker) addrType(m AddrTypeMatch, a netip.Addr) bool {
	return m == AnyType || w.isLocal(a) == (m == Local)
}
