package netfilter

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// ReadSets reads what "ipset save" printed and returns the sets sorted by
// name. Of types that this package does not know only the names are kept.
func ReadSets(r io.Reader) ([]Set, error) {
	var sets []*Set
	byName := make(map[string]*Set)
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		word := withoutComment(strings.Fields(lines.Text()))
		var err error
		switch {
		case len(word) == 0 || word[0][0] == '#':
		case len(word) >= 3 && word[0] == "create":
			s := &Set{Name: word[1], Type: SetType(word[2])}
			err = s.options(word[3:])
			sets, byName[s.Name] = append(sets, s), s
		case len(word) >= 3 && word[0] == "add" && byName[word[1]] != nil:
			err = byName[word[1]].add(word[2], word[3:])
		default:
			err = fmt.Errorf("%q is neither a set nor an entry of one", lines.Text())
		}
		if err != nil {
			return nil, fmt.Errorf("line %d of the saved sets: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the saved sets: %w", err)
	}
	slices.SortFunc(sets, func(a, b *Set) int { return cmp.Compare(a.Name, b.Name) })
	out := make([]Set, len(sets))
	for i, s := range sets {
		out[i] = *s
	}
	return out, nil
}

// withoutComment leaves out the comment of an entry, which ipset prints last.
func withoutComment(word []string) []string {
	for i := 3; i+1 < len(word); i++ {
		if word[0] == "add" && word[i] == "comment" && word[i+1][0] == '"' {
			return word[:i]
		}
	}
	return word
}

// options reads what comes after the type: words and, for some, their value.
func (s *Set) options(word []string) error {
	for len(word) > 0 {
		option := word[0]
		word = word[1:]
		switch option {
		case "skbinfo":
			s.Marks = true
			continue
		case "counters", "comment", "forceadd":
			continue
		}
		if len(word) == 0 {
			return fmt.Errorf("the option %q of set %s has no value", option, s.Name)
		}
		if err := s.option(option, word[0]); err != nil {
			return fmt.Errorf("set %s: %s: %w", s.Name, option, err)
		}
		word = word[1:]
	}
	return nil
}

func (s *Set) option(name, value string) (err error) {
	switch name {
	case "family":
		s.Family = dataplane.IPv4
		if value == "inet6" {
			s.Family = dataplane.IPv6
		}
	case "maxelem":
		s.MaxEntries, err = parse32(value)
	case "timeout":
		s.Expires = true
		s.Timeout, err = parse32(value)
	case "range":
		first, last, _ := strings.Cut(value, "-")
		if s.Type == BitmapPort {
			s.FirstPort, err = parsePort(first)
			if err == nil {
				s.LastPort, err = parsePort(last)
			}
		}
	}
	return err
}

// add reads an entry, such as "10.0.0.1,tcp:80,10.0.0.2 timeout 5".
func (s *Set) add(text string, option []string) error {
	if !s.Type.isKnown() {
		return nil
	}
	var e SetEntry
	part := strings.Split(text, ",")
	if len(part) != s.Type.dimensions() {
		return fmt.Errorf("%q is no entry of a %s", text, s.Type)
	}
	if err := e.parts(s.Type, part); err != nil {
		return fmt.Errorf("entry %q of set %s: %w", text, s.Name, err)
	}
	for len(option) > 0 {
		name := option[0]
		if option = option[1:]; name == "nomatch" {
			return fmt.Errorf("entry %q of set %s: what is excepted by nomatch is not understood", text, s.Name)
		}
		if len(option) == 0 {
			return fmt.Errorf("entry %q of set %s: the option %q has no value", text, s.Name, name)
		}
		if err := e.option(name, option[0]); err != nil {
			return fmt.Errorf("entry %q of set %s: %w", text, s.Name, err)
		}
		option = option[1:]
	}
	s.Entries = append(s.Entries, e)
	return nil
}

func (e *SetEntry) parts(t SetType, part []string) (err error) {
	if t == BitmapPort {
		e.Port, err = parsePort(part[0])
		return err
	}
	if e.Net, err = parsePrefix(part[0]); err != nil || len(part) == 1 {
		return err
	}
	proto, port, _ := strings.Cut(part[1], ":")
	n, ok := protocolNumber([]byte(proto))
	if !ok {
		return fmt.Errorf("protocol %q is unknown", proto)
	}
	e.Protocol = n
	if e.Port, err = parsePort(port); err != nil || len(part) == 2 {
		return err
	}
	if t == HashIPPortNet {
		e.SecondNet, err = parsePrefix(part[2])
		return err
	}
	e.Second, err = netip.ParseAddr(part[2])
	return err
}

func (e *SetEntry) option(name, value string) (err error) {
	switch name {
	case "timeout":
		e.Timeout, err = parse32(value)
	case "skbmark":
		var ok bool
		if e.Mark, e.MarkMask, ok = number2([]byte(value)); !ok {
			err = fmt.Errorf("%q is no mark", value)
		}
	}
	return err
}

func parsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	return netip.PrefixFrom(a, a.BitLen()), err
}

func parse32(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}
