package netfilter

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// WriteRules writes all tables of a kernel as iptables-save does, of the back
// end that the kernel is read through. Counters are zero. Tables that have no
// chains are left out.
func WriteRules(ctx context.Context, w io.Writer, k Kernel) error {
	out := bufio.NewWriter(w)
	for _, t := range Tables() {
		chains, err := ReadTable(ctx, k, t, nil)
		if err != nil {
			return err
		}
		if len(chains) > 0 {
			_, _ = out.Write(appendTable(nil, t, chains)) // Flush tells
		}
	}
	return out.Flush()
}

func appendTable(b []byte, t Table, chains map[string]Chain) []byte {
	b = append(append(append(b, '*'), t...), '\n')
	names := slices.Sorted(maps.Keys(chains))
	for _, name := range names {
		policy := chains[name].Policy
		if policy == "" {
			policy = "-"
		}
		b = fmt.Appendf(b, ":%s %s [0:0]\n", name, policy)
	}
	for _, name := range names {
		rules := chains[name].Rules
		for i := range rules {
			b = appendRule(b, "-A ", name, 0, &rules[i])
		}
	}
	return append(b, "COMMIT\n"...)
}

// WriteSets writes sets as "ipset save" does. Of types that this package does
// not know only the names are written, which is all that [ReadSets] keeps.
func WriteSets(w io.Writer, sets []Set) error {
	out := bufio.NewWriter(w)
	for i := range sets {
		s := &sets[i]
		fmt.Fprintln(out, s.declaration())
		for j := range s.Entries {
			fmt.Fprintf(out, "add %s %s\n", s.Name, s.entryText(&s.Entries[j]))
		}
	}
	return out.Flush()
}

func (s *Set) declaration() string {
	text := "create " + s.Name + " " + string(s.Type)
	switch s.Family {
	case dataplane.IPv4:
		text += " family inet"
	case dataplane.IPv6:
		text += " family inet6"
	}
	if s.Type == BitmapPort {
		text += fmt.Sprintf(" range %d-%d", s.FirstPort, s.LastPort)
	}
	if s.MaxEntries != 0 {
		text += fmt.Sprintf(" maxelem %d", s.MaxEntries)
	}
	if s.Expires {
		text += fmt.Sprintf(" timeout %d", s.Timeout)
	}
	if s.Marks {
		text += " skbinfo"
	}
	return text
}

// EntryText is the entry as ipset prints it.
func (c SetChange) EntryText() string { return (&Set{Type: c.Type}).entryText(&c.Entry) }

func (s *Set) entryText(e *SetEntry) string {
	if s.Type == BitmapPort {
		return strconv.Itoa(int(e.Port))
	}
	part := []string{prefixText(e.Net)}
	if s.Type.hasPort() {
		part = append(part, fmt.Sprintf("%s:%d", protocolText(e.Protocol), e.Port))
	}
	if e.Second.IsValid() {
		part = append(part, e.Second.String())
	}
	if e.SecondNet.IsValid() {
		part = append(part, prefixText(e.SecondNet))
	}
	text := strings.Join(part, ",")
	if s.Expires {
		text += fmt.Sprintf(" timeout %d", e.Timeout)
	}
	if s.Marks && (e.Mark != 0 || e.MarkMask != 0) {
		text += fmt.Sprintf(" skbmark 0x%x/0x%x", e.Mark, e.MarkMask)
	}
	return text
}

// prefixText leaves the length of a single address out.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// protocolText is what ipset prints, or the number of a protocol that has no
// name here.
func protocolText(p dataplane.Protocol) string {
	name := strings.ToLower(p.String())
	if n, ok := protocolNumber([]byte(name)); ok && n == p {
		return name
	}
	return strconv.Itoa(int(p))
}
