package netfilter

import (
	"slices"
	"strings"
)

// InFront tells whether the wanted rules of one owner are in a chain of the
// kernel once, and before anything that might take a flow away (CVE-2019-9946).
// Calico insists on being first in every chain; it translates only its own
// floating addresses, and moving back and forth would never end.
func InFront(rules, want []Rule, owns func(Rule) bool) bool {
	for len(rules) > 0 && len(want) > 0 && strings.HasPrefix(rules[0].Target.Name, "cali-") {
		rules = rules[1:]
	}
	if len(rules) < len(want) || !slices.Equal(rules[:len(want)], want) {
		return false
	}
	return !slices.ContainsFunc(rules[len(want):], owns)
}

// PutInFront makes a transaction bring the wanted rules of one owner to the
// front of a chain of the kernel that has these rules, unless they are there.
func (tx *Transaction) PutInFront(chain string, rules, want []Rule, owns func(Rule) bool) {
	if InFront(rules, want, owns) {
		return
	}
	for _, r := range rules {
		if owns(r) {
			tx.Remove = append(tx.Remove, PlacedRule{Chain: chain, Rule: r})
		}
	}
	for i, r := range want {
		tx.Insert = append(tx.Insert, PlacedRule{Chain: chain, At: i + 1, Rule: r})
	}
}
