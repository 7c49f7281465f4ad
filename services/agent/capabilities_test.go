package agent

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs"
)

var update = flag.Bool("update", false, "write the table of capabilities anew")

const (
	modesDocument = "../../docs/modes.md"
	meaningTitle  = "what it means"
)

// TestCapabilityTable: what users read about modes is what the modes declare.
// Proves S9.8.
func TestCapabilityTable(t *testing.T) {
	text, err := os.ReadFile(modesDocument)
	if err != nil {
		t.Fatal(err)
	}
	before, table, after := cutTable(t, string(text))
	want := strings.Join(capabilityRows(t, table), "\n") + "\n"
	if table == want {
		return
	}
	if !*update {
		t.Fatalf("%s has the table\n%s\nand the modes declare\n%s", modesDocument, table, want)
	}
	if err := os.WriteFile(modesDocument, []byte(before+want+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

func cutTable(t *testing.T, text string) (before, table, after string) {
	t.Helper()
	start := strings.Index(text, "| capability |")
	if start < 0 {
		t.Fatal("there is no table of capabilities")
	}
	table, after, found := strings.Cut(text[start:], "\n\n")
	if found {
		table, after = table+"\n", "\n"+after
	}
	return text[:start], table, after
}

// capabilityRows is the table with the meanings that it has: they are written by
// hand.
func capabilityRows(t *testing.T, table string) []string {
	t.Helper()
	meanings := make(map[string]string)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		meanings[strings.TrimSpace(cells[0])] = strings.TrimSpace(cells[len(cells)-1])
	}
	var built []dataplane.Mode
	head, rule := "| capability |", "|---|"
	for _, m := range Modes(nil, ipvs.Options{}) {
		if m.Open != nil {
			built = append(built, m)
			head, rule = head+" "+m.Name+" |", rule+"---|"
		}
	}
	rows := []string{head + " " + meaningTitle + " |", rule + "---|"}
	for _, c := range dataplane.Capabilities() {
		meaning := meanings[string(c)]
		if meaning == "" {
			t.Fatalf("%s does not say what %s means", modesDocument, c)
		}
		row := "| " + string(c) + " |"
		for _, m := range built {
			row += map[bool]string{true: " yes |", false: " no |"}[m.Has(c)]
		}
		rows = append(rows, row+" "+meaning+" |")
	}
	return rows
}

// TestLacksAreCapabilities: a mode declares no capability that nobody shows.
func TestLacksAreCapabilities(t *testing.T) {
	known := make(map[dataplane.Capability]bool)
	for _, c := range dataplane.Capabilities() {
		known[c] = true
	}
	for _, m := range Modes(nil, ipvs.Options{}) {
		for _, c := range m.Lacks {
			if !known[c] {
				t.Errorf("%s lacks %s, which dataplane.Capabilities does not list", m.Name, c)
			}
		}
	}
}
