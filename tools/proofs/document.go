package main

import (
	"regexp"
	"slices"
	"strings"
)

// A document is a Markdown file with entries, and text between them.
type document struct {
	name    string
	lines   []string
	entries []*entry
}

// An entry is an item of a list that begins with its references in bold. It may
// go on in indented lines, and end with an item that gives its proofs, which is
// written by this command, or the reason for having none:
//
//   - **S2.4** (iptables, userspace) What is decided.
//   - proof: scenario hairpin; law walk; servicecache TestHairpin
//   - **kubernetes#12345, #12346** What went wrong.
//   - no test: the reason
type entry struct {
	document   string
	line       int // of its first line, from 1
	refs       []reference
	modes      []string // that it holds for; nil is every one
	reason     string   // for having no proof
	proofs     []proof
	start, end int // its lines in the document, without that of the proofs
}

var (
	entryLine  = regexp.MustCompile(`^- \*\*([^*]+)\*\*(?: \(([a-z, ]+)\))? .`)
	proofLine  = regexp.MustCompile(`^  - proof: `)
	reasonLine = regexp.MustCompile(`^  - no test: (.+)`)
)

func parseDocument(name, text string) *document {
	d := &document{name: name}
	var open *entry
	for line := range strings.SplitSeq(text, "\n") {
		if proofLine.MatchString(line) {
			continue // to be written anew
		}
		d.lines = append(d.lines, line)
		switch m := entryLine.FindStringSubmatch(line); {
		case m != nil:
			open = &entry{document: name, line: len(d.lines), refs: referencesIn(m[1]), modes: modesIn(m[2]), start: len(d.lines) - 1}
			d.entries = append(d.entries, open)
		case !strings.HasPrefix(line, "  "):
			open = nil
		}
		if open == nil {
			continue
		}
		open.end = len(d.lines)
		if m := reasonLine.FindStringSubmatch(line); m != nil {
			open.reason = m[1]
		}
	}
	return d
}

func modesIn(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ", ")
}

// attach gives each entry its proofs.
func (d *document) attach(all []proof) {
	for _, e := range d.entries {
		for _, p := range all {
			if slices.ContainsFunc(p.refs, func(r reference) bool { return slices.Contains(e.refs, r) }) {
				e.proofs = append(e.proofs, p)
			}
		}
	}
}

// String is the document with the proofs of each entry.
func (d *document) String() string {
	var out []string
	at := 0
	for _, e := range d.entries {
		out = append(out, d.lines[at:e.end]...)
		if at = e.end; len(e.proofs) > 0 {
			out = append(out, "  - proof: "+listed(e.proofs))
		}
	}
	return strings.Join(append(out, d.lines[at:]...), "\n")
}

// listed names proofs by what runs them: scenarios and laws first, then the
// modules, then the cluster.
func listed(proofs []proof) string {
	names := make(map[string][]string)
	for _, p := range proofs {
		if !slices.Contains(names[p.owner], p.name) {
			names[p.owner] = append(names[p.owner], p.name)
		}
	}
	var groups []string
	for _, owner := range owners(names) {
		slices.Sort(names[owner])
		groups = append(groups, owner+" "+strings.Join(names[owner], ", "))
	}
	return strings.Join(groups, "; ")
}

func owners(names map[string][]string) []string {
	var all, modules []string
	for _, first := range []string{"scenario", "law"} {
		if names[first] != nil {
			all = append(all, first)
		}
	}
	for owner := range names {
		if owner != "scenario" && owner != "law" && owner != "e2e" {
			modules = append(modules, owner)
		}
	}
	slices.Sort(modules)
	all = append(all, modules...)
	if names["e2e"] != nil {
		all = append(all, "e2e")
	}
	return all
}
