package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func list() List {
	return List{
		Lacks: map[string][]string{"userspace": {"keep-source"}},
		Expected: []Expected{
			{Spec: "Services should serve [Conformance]"},
			{Spec: "Services should (keep) the source", Capability: "keep-source"},
			{Spec: "Services should be found [Conformance]", Frozen: green},
		},
		Excluded: []Excluded{{"[Feature:SCTP]", "needs SCTP"}, {"Services should use", "needs a cloud"}},
	}
}

func run(states map[string]string) Run {
	r := Run{Specs: map[string]Result{}, Took: time.Minute}
	for spec, state := range states {
		r.Specs[spec] = Result{State: state}
	}
	return r
}

// all is a run in which everything is as it must be.
func all() map[string]string {
	return map[string]string{
		"Services should serve [Conformance]":                "passed",
		"Services should (keep) the source":                  "passed",
		"Services should be found [Conformance]":             "passed",
		"Services should use balancers":                      "skipped",
		"Services should use packets of SCTP [Feature:SCTP]": "skipped",
	}
}

// docs/modes.md has what the code of the modes declares.
func TestLacksAreThoseOfTheModes(t *testing.T) {
	l, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "modes.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(doc)) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| ") {
			rows[strings.TrimPrefix(cells[0], "| ")] = cells[1:]
		}
	}
	modes := rows["capability"]
	for _, e := range l.Expected {
		if e.Capability == "" {
			continue
		}
		row, known := rows[e.Capability]
		if !known {
			t.Errorf("%q needs %q, which is no capability", e.Spec, e.Capability)
			continue
		}
		for i, has := range row[:len(row)-1] {
			if lacks := slices.Contains(l.Lacks[modes[i]], e.Capability); lacks != (has == "no") {
				t.Errorf("mode %s: the list says that it lacks %s: %v; docs/modes.md says that it has it: %s", modes[i], e.Capability, lacks, has)
			}
		}
	}
}

func TestSelectAndFocus(t *testing.T) {
	l := list()
	for _, tc := range []struct {
		mode, label  string
		want, cannot []int
	}{
		{"iptables", "", []int{0, 1, 2}, nil},
		{"userspace", "", []int{0, 2}, []int{1}},
		{"userspace", "Conformance", []int{0, 2}, nil},
	} {
		want, cannot := l.Select(tc.mode, tc.label)
		same := func(got []Expected, indexes []int) bool {
			return slices.EqualFunc(got, indexes, func(e Expected, i int) bool { return e == l.Expected[i] })
		}
		if !same(want, tc.want) || !same(cannot, tc.cannot) {
			t.Errorf("%s, label %q: want %v, cannot %v", tc.mode, tc.label, want, cannot)
		}
	}
	focus := regexp.MustCompile(Focus(l.Expected[:2]))
	for name, want := range map[string]bool{
		"[sig-network] Services should serve [Conformance]":        true,
		"[sig-network] Services should (keep) the source":          true,
		"[sig-network] Services should serve [Conformance] [Slow]": false,
		"[sig-network] Services should be found [Conformance]":     false,
		"[sig-storage] Services should serve [Conformance]":        false,
	} {
		if got := focus.MatchString("Kubernetes e2e suite " + name); got != want {
			t.Errorf("focus on %q: %v", name, got)
		}
	}
}

func TestJudge(t *testing.T) {
	const serve, found = "Services should serve [Conformance]", "Services should be found [Conformance]"
	for _, tc := range []struct {
		name        string
		mode, label string
		frozen      bool
		change      func(map[string]string)
		want        string // a part of the error; empty: none
	}{
		{name: "all as it must be", mode: "iptables"},
		{"a failure", "iptables", "", false, func(s map[string]string) { s[serve] = "timedout" }, "1 specs failed:\n  " + serve},
		{"skipped", "iptables", "", false, func(s map[string]string) { s[serve] = "skipped" }, "1 specs did not run"},
		{"gone", "iptables", "", false, func(s map[string]string) { delete(s, serve) }, "1 specs did not run"},
		{"new", "iptables", "", false, func(s map[string]string) { s["Services should fly"] = "skipped" }, "neither expected nor excluded:\n  Services should fly"},
		{"nothing to exclude", "iptables", "", false, func(s map[string]string) { delete(s, "Services should use balancers") }, `excluded by "Services should use"`},
		{"what the mode lacks", "userspace", "", false, func(s map[string]string) { s["Services should (keep) the source"] = "skipped" }, ""},
		{"another label", "iptables", "Conformance", false, func(s map[string]string) { s["Services should (keep) the source"] = "skipped" }, ""},
		{"frozen", "iptables", "Conformance", true, func(s map[string]string) { s[serve] = "failed" }, ""},
		{"frozen, and none prove", "iptables", "Conformance", true, func(s map[string]string) { s[serve], s[found] = "failed", "failed" }, ""},
		{"frozen, and yet green", "iptables", "Conformance", true, func(map[string]string) {}, "pass without a proxy, and the list does not say so:\n  " + serve},
		{"frozen, not run", "iptables", "Conformance", true, func(s map[string]string) { s[serve] = "skipped" }, "did not run"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			states := all()
			if tc.change != nil {
				tc.change(states)
			}
			err := list().Judge(run(states), tc.mode, tc.label, tc.frozen).Err()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
		})
	}
}

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	spec := func(node, container, text, state, message string) map[string]any {
		return map[string]any{
			"ContainerHierarchyTexts": []string{container}, "LeafNodeType": node, "LeafNodeText": text, "State": state,
			"RunTime": time.Second, "Failure": map[string]string{"Message": message},
		}
	}
	write := func(specs ...map[string]any) {
		t.Helper()
		raw, err := json.Marshal([]map[string]any{{"RunTime": time.Minute, "SpecReports": specs}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(spec("It", "[sig-network] Services", "should serve [Conformance]", "failed", "no answer\nfrom it"),
		spec("It", "[sig-network] Services", "should be found [Conformance]", "passed", ""),
		spec("It", "[sig-network] Services", "should use balancers", "skipped", ""),
		spec("It", "[sig-network] Services", "should use SCTP [Feature:SCTP]", "skipped", ""),
		spec("It", "[sig-storage] Volumes", "should hold", "skipped", ""))
	r, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Specs) != 4 || r.Specs["Services should serve [Conformance]"].State != "failed" || r.Took != time.Minute {
		t.Errorf("run is %+v", r)
	}
	var out strings.Builder
	if err := list().Judge(r, "iptables", "Conformance", false).Write(&out, "Title"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Title\n", "1 passed, 1 failed, in 1m0s.",
		"## Failed: 1\n\n- Services should serve [Conformance] (1s): no answer\n",
		"prove nothing about it: 1\n\n- Services should be found [Conformance] (1s)\n",
		"## Excluded, needs SCTP (\"[Feature:SCTP]\"): 1\n\n- Services should use SCTP [Feature:SCTP]\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	write(spec("SynchronizedBeforeSuite", "", "", "failed", "no node is ready"))
	if r, err = Read(path); err != nil {
		t.Fatal(err)
	}
	if err := list().Judge(r, "iptables", "", false).Err(); err == nil || !strings.Contains(err.Error(), "no node is ready") {
		t.Errorf("error is %v", err)
	}
}
