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

func (w *Walker) inSet(m *SetMatch, p *Packet) truth {
	if m.Name == "" {
		return yes
	}
	if w.forgets(m.Name) {
		return is(m.Not)
	}
	if !w.Sets[m.Name].Type.isKnown() {
		return unknown
	}
	_, found := w.lookup(m.Name, m.Parts, p)
	return is(found != m.Not)
}

// lookup finds the entry of a set that a packet matches. A set takes as many
// of the packet's parts as it has dimensions, and finds nothing if there are
// fewer.
func (w *Walker) lookup(set, parts string, p *Packet) (SetEntry, bool) {
	s := w.Sets[set]
	part := strings.Split(parts, ",")
	if len(part) < s.Type.dimensions() {
		return SetEntry{}, false
	}
	best := -1
	for i := range s.Entries {
		if e := &s.Entries[i]; s.Type.holds(e, part, p) && (best < 0 || e.Net.Bits() > s.Entries[best].Net.Bits()) {
			best = i
		}
	}
	if best < 0 {
		return SetEntry{}, false
	}
	return s.Entries[best], true
}

// isKnown says whether the walk can look into sets of the type.
func (t SetType) isKnown() bool {
	switch t {
	case HashIP, HashNet, HashIPPort, HashIPPortIP, HashIPPortNet, BitmapPort:
		return true
	}
	return false
}

// hasPort says whether entries have a protocol and a port next to an address.
func (t SetType) hasPort() bool {
	return t == HashIPPort || t == HashIPPortIP || t == HashIPPortNet
}

// dimensions of the set's type: how many parts of a packet it looks at.
func (t SetType) dimensions() int { return strings.Count(string(t), ",") + 1 }

func (t SetType) holds(e *SetEntry, part []string, p *Packet) bool {
	switch t {
	case HashIP, HashNet:
		return e.Net.Contains(p.end(part[0]).Addr())
	case BitmapPort:
		return e.Port == p.end(part[0]).Port() && p.Protocol.HasPorts()
	case HashIPPort, HashIPPortIP, HashIPPortNet:
		return e.Net.Contains(p.end(part[0]).Addr()) && e.Protocol == p.Protocol &&
			e.Port == p.end(part[1]).Port() &&
			(t != HashIPPortIP || e.Second == p.end(part[2]).Addr()) &&
			(t != HashIPPortNet || e.SecondNet.Contains(p.end(part[2]).Addr()))
	}
	return false
}

// end is the packet's source or destination.
func (p *Packet) end(part string) netip.AddrPort {
	if part == "src" {
		return p.Source
	}
	return p.Destination
}
