package layers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Violation is a dependency that a rule denies.
type Violation struct {
	Rule  Rule
	Chain []string // from the package that the rule is about to the denied one
	Test  bool     // the first step is an import of its tests
}

func (v Violation) String() string {
	arrow := " -> "
	if v.Test {
		arrow = " (test) -> "
	}
	chain := v.Chain[0] + arrow + strings.Join(v.Chain[1:], " -> ")
	return fmt.Sprintf("%s: %s\n\t%s", v.Rule.Name, chain, v.Rule.Reason)
}

// Check lists what in graph breaks a rule, in a fixed order.
func Check(graph Graph, rules []Rule) []Violation {
	var violations []Violation
	for _, rule := range rules {
		for _, from := range slices.Sorted(maps.Keys(graph)) {
			if !rule.From(from) {
				continue
			}
			violations = append(violations, search(graph, rule, from, graph[from].Imports, false)...)
			if rule.Tests {
				violations = append(violations, search(graph, rule, from, graph[from].TestImports, true)...)
			}
		}
	}
	return violations
}

// search walks breadth first from one package's imports and reports the shortest
// chain to each denied package. It does not enter packages that the rule is
// about, as they answer for themselves, nor look behind a denied one.
func search(graph Graph, rule Rule, from string, imports []string, test bool) []Violation {
	var violations []Violation
	seen := map[string]bool{from: true}
	queue := extend(nil, []string{from}, imports)
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		at := chain[len(chain)-1]
		if seen[at] {
			continue
		}
		seen[at] = true
		switch {
		case rule.Denied(from, at):
			violations = append(violations, Violation{Rule: rule, Chain: chain, Test: test})
		case !rule.From(at):
			queue = extend(queue, chain, graph[at].Imports)
		}
	}
	return violations
}

func extend(queue [][]string, chain, imports []string) [][]string {
	for _, path := range imports {
		queue = append(queue, append(slices.Clone(chain), path))
	}
	return queue
}
