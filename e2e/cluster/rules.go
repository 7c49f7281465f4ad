package cluster

import (
	"regexp"
	"strings"
)

// RulesAbout picks from what iptables-save prints the rules that have one of the
// words, and those of the chains that these lead to.
func RulesAbout(save string, words ...string) string {
	var picked []string
	done := make(map[string]bool)
	for len(words) > 0 {
		var chains []string
		for line := range strings.Lines(save) {
			line = strings.TrimSpace(line)
			if done[line] || !strings.HasPrefix(line, "-A ") || !containsAny(line, words) {
				continue
			}
			done[line] = true
			picked = append(picked, line)
			if m := target.FindStringSubmatch(line); m != nil {
				chains = append(chains, "-A "+m[1]+" ")
			}
		}
		words = chains
	}
	return strings.Join(picked, "\n")
}

// target is a chain that belongs to one Service.
var target = regexp.MustCompile(`-[jg] (KUBE-(?:SVC|SVL|SEP|EXT|FW)-[A-Z0-9-]+)`)

func containsAny(s string, words []string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
