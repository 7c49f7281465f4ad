package netfilter

import (
	"bytes"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// ParseRule reads a rule as String writes it and as iptables-save prints it
// after "-A CHAIN ". It never fails: a rule that it does not understand comes
// back opaque, and what comes back prints the same bytes.
func ParseRule(text string) Rule {
	var p parser
	return p.parse([]byte(text))
}

// parser reads rules one after the other and reuses its buffers. The zero
// parser is ready.
type parser struct {
	words
	names  map[string]string
	out    []byte
	rule   Rule // being read
	module string
	not    bool
}

// parse reads a rule into the fields that it understands, prints these, and
// keeps the text if that is not what was read. So a rule cannot be misread
// without being noticed, and never equals one that prints other bytes.
func (p *parser) parse(line []byte) Rule {
	r := &p.rule
	*r = Rule{}
	p.rest, p.module, p.not = line, "", false
	for word := p.next(); word != nil; word = p.next() {
		if !p.option(word) {
			r.Opaque = true
			p.skipToTarget()
		}
	}
	if p.out = r.Append(p.out[:0]); r.Opaque || !bytes.Equal(p.out, line) {
		r.Text = string(line)
	}
	return *r
}

// skipToTarget looks for the target of a rule that is not understood, so
// that at least the chain it refers to is known.
func (p *parser) skipToTarget() {
	for word := p.next(); word != nil; word = p.next() {
		if p.quoted {
			continue
		}
		switch string(word) {
		case "-j", "-g":
			p.target(word[1] == 'g')
			p.rest = nil
			return
		}
	}
}

// option reads one option with its values, and says whether it understood.
func (p *parser) option(word []byte) bool {
	if p.quoted {
		return false
	}
	if string(word) == "!" {
		was := p.not
		p.not = true
		return !was
	}
	ok := p.basic(word)
	p.not = false
	return ok
}

func (p *parser) basic(word []byte) bool {
	r := &p.rule
	switch string(word) {
	case "-s":
		return p.addr(&r.Source)
	case "-d":
		return p.addr(&r.Destination)
	case "-i":
		return p.iface(&r.In)
	case "-o":
		return p.iface(&r.Out)
	case "-p":
		return p.protocol()
	case "-m":
		p.module = p.name(p.next())
		return !p.not && p.module != ""
	case "-j", "-g":
		return !p.not && p.target(word[1] == 'g')
	}
	return p.match(word)
}

func (p *parser) match(word []byte) bool {
	switch p.module {
	case "tcp", "udp", "sctp":
		return p.ports(word)
	case "comment":
		return p.comment(word)
	case "addrtype":
		return p.addrType(word)
	case "conntrack":
		return p.conntrack(word)
	case "mark":
		return p.mark(word)
	case "set":
		return p.set(word)
	case "statistic":
		return p.statistic(word)
	}
	return false
}

// name returns a word as a string that is shared by all rules. Words that
// were quoted or are empty are no names.
func (p *parser) name(word []byte) string {
	if p.quoted || len(word) == 0 {
		return ""
	}
	return p.intern(word)
}

func (p *parser) intern(word []byte) string {
	if s, ok := p.names[string(word)]; ok {
		return s
	}
	if p.names == nil {
		p.names = make(map[string]string)
	}
	s := string(word)
	p.names[s] = s
	return s
}

func (p *parser) addr(m *AddrMatch) bool {
	if m.Addr.IsValid() {
		return false
	}
	addr, mask, ok := bytes.Cut(p.next(), []byte("/"))
	a, err := netip.ParseAddr(string(addr))
	if err != nil || !ok || a.Zone() != "" {
		return false
	}
	if bits, ok := decimal(mask, uint64(a.BitLen())); ok {
		*m = MatchPrefix(netip.PrefixFrom(a, int(bits)))
	} else {
		b, err := netip.ParseAddr(string(mask))
		if err != nil || b.BitLen() != a.BitLen() || b.Zone() != "" {
			return false
		}
		*m = MatchMask(a, b)
	}
	m.Not = p.not
	return m.Addr.IsValid()
}

func (p *parser) iface(m *IfaceMatch) bool {
	if m.Name != "" {
		return false
	}
	*m = IfaceMatch{Name: p.name(p.next()), Not: p.not}
	return m.Name != ""
}

func (p *parser) protocol() bool {
	if p.rule.Protocol.Number != 0 {
		return false
	}
	n, ok := protocolNumber(p.next())
	p.rule.Protocol = ProtocolMatch{Number: n, Not: p.not}
	return ok && n != 0
}

func protocolNumber(word []byte) (dataplane.Protocol, bool) {
	switch string(word) {
	case "tcp":
		return dataplane.TCP, true
	case "udp":
		return dataplane.UDP, true
	case "sctp":
		return dataplane.SCTP, true
	case "icmp":
		return dataplane.ICMP, true
	case "ipv6-icmp", "icmpv6":
		return dataplane.ICMPv6, true
	}
	n, ok := decimal(word, 255)
	return dataplane.Protocol(n), ok
}

func (p *parser) ports(word []byte) bool {
	n := p.rule.Protocol
	if n.Not || protocolName(n.Number) != p.module {
		return false
	}
	switch string(word) {
	case "--sport":
		return p.port(&p.rule.SourcePort)
	case "--dport":
		return p.port(&p.rule.DestPort)
	}
	return false
}

func (p *parser) port(m *PortMatch) bool {
	if m.Last != 0 {
		return false
	}
	first, last, isRange := bytes.Cut(p.next(), []byte(":"))
	a, ok1 := decimal(first, 65535)
	b, ok2 := a, true
	if isRange {
		b, ok2 = decimal(last, 65535)
	}
	if !ok1 || !ok2 || b < a || b == 0 {
		return false
	}
	*m = PortMatch{First: uint16(a), Last: uint16(b), Not: p.not}
	return true
}

func (p *parser) comment(word []byte) bool {
	if p.not || string(word) != "--comment" {
		return false
	}
	text := p.next()
	if text == nil {
		return false
	}
	if p.rule.Comment == "" { // of several, the first; the text holds all
		p.rule.Comment = p.intern(text)
	}
	return true
}

// decimal reads digits, no more than limit.
func decimal(word []byte, limit uint64) (uint64, bool) {
	if len(word) == 0 || len(word) > 10 {
		return 0, false
	}
	n := uint64(0)
	for _, c := range word {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, n <= limit
}
