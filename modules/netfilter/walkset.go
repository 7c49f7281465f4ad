package netfilter

import (
	"net/netip"
	"strings"
)

func (w *Walker) inSet(m *SetMatch, p *Packet) truth {
	if m.Name == "" {
		return yes
	}
	t := w.Sets[m.Name].Type
	if !t.isKnown() && !w.forgets(m.Name) {
		return unknown
	}
	found, wrote := p.wrote(m, t)
	if !wrote && !w.forgets(m.Name) {
		_, found = w.lookup(m.Name, m.Parts, p)
	}
	return is(found != m.Not)
}

// wrote tells whether the rules that a packet has met have put what a match looks
// for into its set, or taken it out.
func (p *Packet) wrote(m *SetMatch, t SetType) (found, wrote bool) {
	part := strings.Split(m.Parts, ",")
	for e := p.written; e != nil && len(part) >= t.dimensions(); e = e.before {
		if e.set == m.Name && t.holds(&e.entry, part, p) {
			return !e.removed, true
		}
	}
	return false, false
}

// written is what the rules that a packet has met have done to a set, the last
// first. Rules that come later see it.
type written struct {
	before  *written
	set     string
	entry   SetEntry
	removed bool
}

// write is a rule that adds a packet to a set or removes it.
func (w *Walker) write(to *Target, p *Packet) {
	t, part := w.Sets[to.Name].Type, strings.Split(to.Parts, ",")
	if len(part) < t.dimensions() || !t.isKnown() {
		return
	}
	first := p.end(part[0])
	e := SetEntry{Net: netip.PrefixFrom(first.Addr(), first.Addr().BitLen())}
	switch {
	case t == BitmapPort:
		e = SetEntry{Port: first.Port()}
	case t.hasPort():
		e.Protocol, e.Port = p.Protocol, p.end(part[1]).Port()
	}
	if len(part) > 2 {
		e.Second = p.end(part[2]).Addr()
		e.SecondNet = netip.PrefixFrom(e.Second, e.Second.BitLen())
	}
	p.written = &written{p.written, to.Name, e, to.Kind == TargetDelSet}
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
