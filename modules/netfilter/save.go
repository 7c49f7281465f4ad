package netfilter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ReadSave reads what iptables-save printed, of one table or of several, and
// calls visit for each chain. Memory is bounded by the longest chain: the
// rules of a chain are valid only until visit returns, unless it copies them.
//
// A chain is visited when its rules end, as iptables-save prints them
// together; chains without rules come last. An error of visit ends the
// reading and is returned as it is.
func ReadSave(r io.Reader, visit func(Table, Chain) error) error {
	return readSave(r, nil, visit)
}

// Known tells whether the reader of rules knows a chain by how its rules are printed:
// a line each, without the chain's name. They are valid until it returns.
type Known func(t Table, chain string, rules []byte) bool

// readSave leaves out what is known, if known is not nil; see [Host.SaveUnknown].
func readSave(r io.Reader, known Known, visit func(Table, Chain) error) error {
	s := saveReader{known: known, visit: visit}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 1<<20)
	for n := 1; lines.Scan(); n++ {
		if err := s.line(lines.Bytes()); err != nil {
			if s.stopped {
				return err
			}
			return fmt.Errorf("line %d of the saved rules: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading the saved rules: %w", err)
	}
	if s.table != "" {
		return fmt.Errorf("the saved rules of table %s end without COMMIT", s.table)
	}
	return nil
}

type saveReader struct {
	parser
	known   Known
	visit   func(Table, Chain) error
	stopped bool // visit returned an error

	table    Table
	chain    string // whose rules are being read
	text     []byte // its rules, a line each
	rules    []Rule // reused
	order    []string
	policies map[string]string
	seen     map[string]bool
}

func (s *saveReader) line(line []byte) error {
	line = bytes.TrimRight(line, " \r")
	if len(line) == 0 || line[0] == '#' {
		return comment(line)
	}
	if s.table == "" && line[0] != '*' {
		return fmt.Errorf("%q is outside of a table", line)
	}
	switch {
	case line[0] == '*':
		return s.begin(Table(line[1:]))
	case line[0] == ':':
		return s.declare(line[1:])
	case string(line) == "COMMIT":
		return s.commit()
	case bytes.HasPrefix(line, []byte("-P ")), bytes.HasPrefix(line, []byte("-N ")):
		return s.list(line[3:])
	}
	return s.add(line)
}

// ErrIncompatible says that a table holds rules which only nft understands.
// iptables-nft goes on to write to it, but shows nothing of it any more.
var ErrIncompatible = errors.New("the table holds rules that only nft understands")

// comment looks for the one comment that says that a table is left out.
func comment(line []byte) error {
	if bytes.HasPrefix(line, []byte("# Table ")) && bytes.Contains(line, []byte("is incompatible")) {
		return fmt.Errorf("%w: %s", ErrIncompatible, line[2:])
	}
	return nil
}

func (s *saveReader) begin(t Table) error {
	if s.table != "" || t == "" {
		return fmt.Errorf("table %q begins inside of table %q", t, s.table)
	}
	s.table = t
	s.order = s.order[:0]
	s.policies = make(map[string]string)
	s.seen = make(map[string]bool)
	return nil
}

// declare reads "NAME POLICY [packets:bytes]".
func (s *saveReader) declare(line []byte) error {
	name, rest, _ := bytes.Cut(line, []byte(" "))
	policy, _, _ := bytes.Cut(rest, []byte(" "))
	if len(name) == 0 || len(policy) == 0 {
		return fmt.Errorf("%q declares no chain", line)
	}
	if string(policy) == "-" {
		policy = nil
	}
	chain := s.intern(name)
	s.order = append(s.order, chain)
	s.policies[chain] = s.intern(policy)
	return nil
}

// list reads "NAME POLICY" or "NAME", as "iptables -S" declares chains.
func (s *saveReader) list(line []byte) error {
	if bytes.IndexByte(line, ' ') < 0 {
		line = append(bytes.Clone(line), " -"...)
	}
	return s.declare(line)
}

// add reads "-A NAME rule", with counters in front if they were asked for.
func (s *saveReader) add(line []byte) error {
	if line[0] == '[' {
		_, line, _ = bytes.Cut(line, []byte(" "))
	}
	rest, ok := bytes.CutPrefix(line, []byte("-A "))
	if !ok {
		return fmt.Errorf("%q is no rule", line)
	}
	name, rule, _ := bytes.Cut(rest, []byte(" "))
	if _, declared := s.policies[string(name)]; !declared {
		return fmt.Errorf("the rule %q is in a chain that was not declared", line)
	}
	if string(name) != s.chain {
		if err := s.flush(); err != nil {
			return err
		}
		s.chain = s.intern(name)
	}
	s.text = append(append(s.text, rule...), '\n')
	return nil
}

// flush hands on the chain whose rules just ended.
func (s *saveReader) flush() error {
	if s.chain == "" {
		return nil
	}
	c := Chain{Name: s.chain, Policy: s.policies[s.chain]}
	s.seen[c.Name] = true
	text := s.text
	s.chain, s.text = "", s.text[:0]
	if c.Policy == "" && s.known != nil && s.known(s.table, c.Name, text) {
		return nil
	}
	s.rules = s.rules[:0]
	for line := range bytes.Lines(text) {
		s.rules = append(s.rules, s.parse(line[:len(line)-1]))
	}
	c.Rules = s.rules
	return s.hand(c)
}

func (s *saveReader) hand(c Chain) error {
	err := s.visit(s.table, c)
	s.stopped = err != nil
	return err
}

func (s *saveReader) commit() error {
	if err := s.flush(); err != nil {
		return err
	}
	for _, name := range s.order {
		if s.seen[name] {
			continue
		}
		if err := s.hand(Chain{Name: name, Policy: s.policies[name]}); err != nil {
			return err
		}
	}
	s.table = ""
	return nil
}
