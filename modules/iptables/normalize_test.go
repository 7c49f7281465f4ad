package iptables

import (
	"slices"
	"strings"
)

// normalize puts a dump into an order that does not depend on when chains and
// sets were made. The order of rules within a chain stays.
func normalize(dump string) string {
	var b strings.Builder
	for i, section := range strings.Split(dump, "== ") {
		if i > 0 {
			b.WriteString("== ")
		}
		title, body, _ := strings.Cut(section, "\n")
		b.WriteString(title + "\n")
		for _, table := range strings.SplitAfter(body, "COMMIT\n") {
			lines := strings.SplitAfter(table, "\n")
			slices.SortStableFunc(lines, func(x, y string) int { return strings.Compare(object(x), object(y)) })
			b.WriteString(strings.Join(lines, ""))
		}
	}
	return b.String()
}

// object is what a line of iptables-save or "ipset save" is about.
func object(line string) string {
	words := strings.Fields(line)
	switch {
	case len(words) == 0:
		return "~"
	case words[0] == "COMMIT":
		return "}"
	case words[0] == "-A", words[0] == "create", words[0] == "add":
		return "-" + words[1]
	}
	return ""
}
