package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/portway/portway/tools/workspace"
)

// modes are those that lines of the documents may name.
var modes = []string{"iptables", "ipvs", "userspace"}

func isMode(word string) bool { return slices.Contains(modes, word) }

// offeredModes are those that the agent imports: one that is not offered yet
// proves nothing.
func offeredModes(root string) ([]string, error) {
	list, err := os.ReadFile(filepath.Join(root, "services/agent/modes.go"))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(modes), func(mode string) bool {
		return !strings.Contains(string(list), workspace.Prefix+"modules/"+mode+`"`)
	}), nil
}

// checkEntries lists the entries that are not as they should be.
func checkEntries(entries []*entry, offered []string) []string {
	var problems []string
	seen := make(map[reference]*entry)
	for _, e := range entries {
		for _, r := range e.refs {
			if first, twice := seen[r]; twice {
				problems = append(problems, fmt.Sprintf("%s: %s is in line %d of %s already", e, r, first.line, first.document))
			}
			seen[r] = e
		}
		if problem := e.problem(offered); problem != "" {
			problems = append(problems, fmt.Sprintf("%s: %s", e, problem))
		}
	}
	return problems
}

func (e *entry) String() string { return fmt.Sprintf("%s:%d", e.document, e.line) }

// problem says what is wrong with an entry by itself.
func (e *entry) problem(offered []string) string {
	for _, mode := range e.modes {
		if !isMode(mode) {
			return fmt.Sprintf("%q is none of %q", mode, modes)
		}
	}
	switch {
	case len(e.refs) == 0:
		return "an entry begins with references such as S1.2 or kubernetes#123 in bold"
	case e.reason != "" && isDecision(e.refs[0]):
		return "a decision needs a test, not a reason to have none"
	case e.reason != "" && len(e.proofs) > 0:
		return fmt.Sprintf("it says that there is no test, and %s carries its number", e.proofs[0])
	case e.reason != "":
		return ""
	}
	return e.uncovered(offered)
}

// uncovered names the modes that an entry holds for and nothing proves it in.
func (e *entry) uncovered(offered []string) string {
	var without []string
	for _, mode := range offered {
		if e.modes != nil && !slices.Contains(e.modes, mode) {
			continue
		}
		if !slices.ContainsFunc(e.proofs, func(p proof) bool { return p.mode == "" || p.mode == mode }) {
			without = append(without, mode)
		}
	}
	if without == nil {
		return ""
	}
	return fmt.Sprintf("no scenario, law or test that says something about %s carries %s", strings.Join(without, ", "), strings.Join(e.refs, " or "))
}

// checkReferences lists the tests that claim to prove a decision that there is
// not. They may name any issue.
func checkReferences(entries []*entry, proofs []proof) []string {
	known := make(map[reference]bool)
	for _, e := range entries {
		for _, r := range e.refs {
			known[r] = true
		}
	}
	var problems []string
	for _, p := range proofs {
		for _, r := range p.refs {
			if isDecision(r) && !known[r] {
				problems = append(problems, fmt.Sprintf("%s: %s carries %s, which no document has", p.file, p, r))
			}
		}
	}
	return problems
}
