package netfilter

import (
	"bytes"
	"math"
	"net/netip"
)

// target reads the target and its options, which are the rest of the line.
func (p *parser) target(isGoto bool) bool {
	t := &p.rule.Target
	if t.Kind != NoTarget {
		return false
	}
	name := p.name(p.next())
	if name == "" {
		return false
	}
	t.Kind = targetKind(name)
	if isGoto {
		t.Kind = TargetGoto
	}
	if t.Kind == TargetJump || t.Kind == TargetGoto {
		t.Name = name
	}
	for word := p.next(); word != nil; word = p.next() {
		if p.quoted || !p.targetOption(t, word) {
			return false
		}
	}
	return t.complete()
}

func targetKind(name string) TargetKind {
	switch name {
	case "ACCEPT":
		return TargetAccept
	case "DROP":
		return TargetDrop
	case "RETURN":
		return TargetReturn
	case "REJECT":
		return TargetReject
	case "DNAT":
		return TargetDNAT
	case "SNAT":
		return TargetSNAT
	case "REDIRECT":
		return TargetRedirect
	case "MASQUERADE":
		return TargetMasquerade
	case "MARK":
		return TargetMark
	case "SET":
		return TargetAddSet
	case "NETMAP":
		return TargetNetmap
	}
	return TargetJump
}

// complete says whether the options that the target cannot be without came.
func (t *Target) complete() bool {
	switch t.Kind {
	case TargetDNAT, TargetSNAT:
		return t.To.Addr().IsValid()
	case TargetNetmap:
		return t.Net.IsValid()
	case TargetReject, TargetAddSet, TargetDelSet, TargetMapMark:
		return t.Name != ""
	}
	return true
}

func (p *parser) targetOption(t *Target, word []byte) bool {
	switch t.Kind {
	case TargetReject:
		return string(word) == "--reject-with" && p.take(&t.Name)
	case TargetDNAT:
		return string(word) == "--to-destination" && p.to(t)
	case TargetSNAT:
		return string(word) == "--to-source" && p.to(t)
	case TargetNetmap:
		return string(word) == "--to" && p.net(t)
	case TargetRedirect:
		return string(word) == "--to-ports" && p.redirect(t)
	case TargetMasquerade:
		t.RandomFully = string(word) == "--random-fully"
		return t.RandomFully
	case TargetMark:
		var ok bool
		if string(word) == "--set-xmark" {
			t.Value, t.Mask, ok = number2(p.next())
		}
		return ok
	case TargetAddSet, TargetDelSet, TargetMapMark:
		return p.setTarget(t, word)
	}
	return false
}

// take fills a name once.
func (p *parser) take(s *string) bool {
	if *s != "" {
		return false
	}
	*s = p.name(p.next())
	return *s != ""
}

// to reads a.b.c.d, a.b.c.d:port, x:y::z or [x:y::z]:port.
func (p *parser) to(t *Target) bool {
	word := p.next()
	if t.To.IsValid() || len(word) == 0 {
		return false
	}
	if word[0] == '[' || bytes.Count(word, []byte(":")) == 1 {
		to, err := netip.ParseAddrPort(string(word))
		t.To = to
		return err == nil && to.Addr().Zone() == "" && to.Port() != 0
	}
	a, err := netip.ParseAddr(string(word))
	t.To = netip.AddrPortFrom(a, 0)
	return err == nil && a.Zone() == ""
}

// net reads a prefix.
func (p *parser) net(t *Target) bool {
	word := p.next()
	if t.Net.IsValid() {
		return false
	}
	net, err := netip.ParsePrefix(string(word))
	t.Net = net
	return err == nil && net == net.Masked()
}

func (p *parser) redirect(t *Target) bool {
	port, ok := decimal(p.next(), 65535)
	t.To = netip.AddrPortFrom(netip.Addr{}, uint16(port))
	return ok && port != 0
}

func (p *parser) setTarget(t *Target, word []byte) bool {
	switch string(word) {
	case "--del-set":
		t.Kind = TargetDelSet
	case "--map-set":
		t.Kind = TargetMapMark
	case "--exist":
		t.Exist = true
		return t.Kind == TargetAddSet
	case "--timeout":
		n, ok := decimal(p.next(), math.MaxUint32)
		t.Timeout = uint32(n)
		return ok && t.Kind == TargetAddSet
	}
	if !bytes.HasSuffix(word, []byte("-set")) || !p.take(&t.Name) {
		return false
	}
	t.Parts = p.parts()
	mapped := t.Kind != TargetMapMark || string(p.next()) == "--map-mark"
	return t.Parts != "" && mapped
}
