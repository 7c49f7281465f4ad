package netfilter

import (
	"bytes"
	"math"
	"net/netip"
	"strconv"
)

func (p *parser) addrType(word []byte) bool {
	switch string(word) {
	case "--src-type":
		return p.addrTypeOf(&p.rule.SourceType)
	case "--dst-type":
		return p.addrTypeOf(&p.rule.DestType)
	case "--limit-iface-in":
		p.rule.LimitIfaceIn = true
		return !p.not
	}
	return false
}

func (p *parser) addrTypeOf(m *AddrTypeMatch) bool {
	if *m != AnyType || string(p.next()) != "LOCAL" {
		return false
	}
	*m = Local
	if p.not {
		*m = NotLocal
	}
	return true
}

func (p *parser) conntrack(word []byte) bool {
	m := &p.rule.Conntrack
	switch string(word) {
	case "--ctstate":
		return p.states(m)
	case "--ctorigdst":
		return p.origDst(m)
	case "--ctorigdstport":
		return p.port(&m.OrigDstPort)
	}
	return false
}

func (p *parser) states(m *ConntrackMatch) bool {
	if m.States != 0 {
		return false
	}
	m.NotStates = p.not
	list := p.next()
	for len(list) > 0 {
		name, rest, _ := bytes.Cut(list, []byte(","))
		bit := stateBit(name)
		if bit == 0 {
			return false
		}
		m.States |= bit
		list = rest
	}
	return m.States != 0
}

func stateBit(name []byte) StateSet {
	for i, s := range stateNames() {
		if string(name) == s {
			return 1 << i
		}
	}
	return 0
}

func (p *parser) origDst(m *ConntrackMatch) bool {
	if p.not || m.OrigDst.IsValid() {
		return false
	}
	addr, length, isPrefix := bytes.Cut(p.next(), []byte("/"))
	a, err := netip.ParseAddr(string(addr))
	if err != nil || a.Zone() != "" {
		return false
	}
	bits, ok := uint64(a.BitLen()), true
	if isPrefix {
		bits, ok = decimal(length, bits)
	}
	m.OrigDst = netip.PrefixFrom(a, int(bits)).Masked()
	return ok
}

func (p *parser) mark(word []byte) bool {
	m := &p.rule.Mark
	if string(word) != "--mark" || m.Mask != 0 {
		return false
	}
	value, mask, ok := number2(p.next())
	*m = MarkMatch{Value: value, Mask: mask, Not: p.not}
	return ok && mask != 0
}

// number2 reads value/mask as iptables prints it; no mask means all bits.
func number2(word []byte) (value, mask uint32, ok bool) {
	a, b, both := bytes.Cut(word, []byte("/"))
	value, ok = number(a)
	if !both {
		return value, math.MaxUint32, ok
	}
	mask, okMask := number(b)
	return value, mask, ok && okMask
}

func number(word []byte) (uint32, bool) {
	hex, isHex := bytes.CutPrefix(word, []byte("0x"))
	if !isHex {
		n, ok := decimal(word, math.MaxUint32)
		return uint32(n), ok
	}
	n, err := strconv.ParseUint(string(hex), 16, 32)
	return uint32(n), err == nil
}

func (p *parser) set(word []byte) bool {
	if string(word) != "--match-set" {
		return false
	}
	m := SetMatch{Not: p.not}
	m.Name = p.name(p.next())
	m.Parts = p.parts()
	if m.Name == "" || m.Parts == "" {
		return false
	}
	for i := range p.rule.Sets {
		if p.rule.Sets[i].Name == "" {
			p.rule.Sets[i] = m
			return true
		}
	}
	return false
}

// parts reads which addresses of a packet are looked up in a set.
func (p *parser) parts() string {
	s := p.name(p.next())
	for rest := []byte(s); len(rest) > 0; {
		var part []byte
		part, rest, _ = bytes.Cut(rest, []byte(","))
		if string(part) != "src" && string(part) != "dst" {
			return ""
		}
	}
	return s
}

func (p *parser) statistic(word []byte) bool {
	switch string(word) {
	case "--mode":
		return !p.not && string(p.next()) == "random"
	case "--probability":
		if p.not || p.rule.Probability != 0 {
			return false
		}
		f, err := strconv.ParseFloat(string(p.next()), 64)
		if err != nil || !(f > 0 && f <= 1) {
			return false
		}
		p.rule.Probability = uint32(math.Round(f * certain))
		return p.rule.Probability != 0
	}
	return false
}
