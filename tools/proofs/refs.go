package main

import (
	"regexp"
	"slices"
	"strings"
)

// A reference names a line of a document: a decision (S2.4), an issue or pull
// request by its repository's short name (kubernetes#19029, kube-router#1583), a
// CVE, or a Kubernetes enhancement (KEP-1669).
type reference = string

// references matches them in running text. After an issue, others of the same
// repository may follow without its name: kubernetes#3216, #28674 and #76338.
var references = regexp.MustCompile(`\bS[0-9]+\.[0-9]+\b|\bCVE-[0-9]+-[0-9]+\b|\bKEP-[0-9]+\b|\b[A-Za-z][A-Za-z0-9-]*#[0-9]+(?:(?:,? and |, )#[0-9]+)*`)

// referencesIn returns those of a text, sorted, each once.
func referencesIn(text string) []reference {
	var found []reference
	for _, match := range references.FindAllString(text, -1) {
		repository, _, issue := strings.Cut(match, "#")
		if !issue {
			found = append(found, match)
			continue
		}
		if repository == "k8s" {
			repository = "kubernetes"
		}
		for _, number := range regexp.MustCompile(`#[0-9]+`).FindAllString(match, -1) {
			found = append(found, repository+number)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func isDecision(r reference) bool { return r[0] == 'S' && !strings.Contains(r, "#") }
