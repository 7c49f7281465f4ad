package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestWorkspace checks the repository itself.
func TestWorkspace(t *testing.T) {
	if err := run(t.Context(), io.Discard, ".", true); err != nil {
		t.Error(err)
	}
}

func TestReferencesIn(t *testing.T) {
	for text, want := range map[string]string{
		"Proves S2.4, S10.12.":                          "S10.12 S2.4",
		"kubernetes#1, #23 and #456: three":             "kubernetes#1 kubernetes#23 kubernetes#456",
		"k8s#7; kube-router#1583 (k8s#7)":               "kube-router#1583 kubernetes#7",
		"see CVE-2019-9946, KEP-1669":                   "CVE-2019-9946 KEP-1669",
		"none: IS1.2 S1 S1.x item #7 KUBE-SVL 10.96.0.": "",
	} {
		if got := strings.Join(referencesIn(text), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

const goTests = `package x

// What it shows.
// Proves S1.1.
func TestOne(t *testing.T) {}

func TestTwo(t *testing.T) {
	t.Run("the rest (k8s#5)", nil)
}

// S1.9 is what it helps with.
func helper() {}

func TestNothing(t *testing.T) {}

var _ = Describe("Things", func() {
	// S1.2, too.
	It("goes \"on\"", func() {})
	It("is silent", func() { _ = "S1.3" })
	It("has no number", func() {})
})
`

func TestProofsIn(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"modules/cache/x_test.go", goTests, `cache TestOne [S1.1] "", cache TestTwo [kubernetes#5] "", e2e "goes \"on\"" [S1.2] "", e2e "is silent" [S1.3] ""`},
		{"modules/iptables/x_test.go", "package x\n// S1.1\nfunc FuzzIt(f *testing.F) {}\n", `iptables FuzzIt [S1.1] "iptables"`},
		{"modules/relay/tcp_test.go", "package x\n// S1.1\nfunc TestIt(t *testing.T) {}\n", `relay TestIt [S1.1] "userspace"`},
		{"modules/relay/loopback_test.go", "package x\n// S1.1\nfunc TestIt(t *testing.T) {}\n", `relay TestIt [S1.1] ""`},
		{lawsDir + "/kill.go", "package x\n// S1.1\nfunc kill() {}\nfunc fall() {}\n", `law kill [S1.1] ""`},
		{lawsDir + "/scenarios/one.txtar", "It shows (k8s#5), S1.1.\n-- state --\n", `scenario one [S1.1 kubernetes#5] ""`},
		{"modules/ipvs/scenarios/two.txtar", "S1.1\n-- state --\n", `scenario two [S1.1] "ipvs"`},
		{"services/agent/cmd/portway/testdata/script/a.txt", "# S1.1\n", `agent script a [S1.1] ""`},
		{"modules/cache/x.go", "package x\n// S1.1\nfunc TestOne() {}\n", ""},
	} {
		found, err := proofsIn(c.file, []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range found {
			got = append(got, p.String()+" ["+strings.Join(p.refs, " ")+`] "`+p.mode+`"`)
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s holds\n%s, want\n%s", c.file, s, c.want)
		}
	}
}

const text = `# Title

- just an item

- **S1.1** First.
  It goes on.
  - proof: law old
- **S1.2** (iptables, ipvs) Second.
- **kubernetes#5, #6** Third.
  - no test: nobody has it

The end.
`

func TestDocumentNamesItsProofs(t *testing.T) {
	d := parseDocument("x.md", text)
	d.attach([]proof{
		{owner: "e2e", name: `"it works"`, refs: []string{"S1.1"}},
		{owner: "cache", name: "TestB", refs: []string{"S1.1"}},
		{owner: "scenario", name: "one", refs: []string{"S1.1", "S1.2"}},
		{owner: "cache", name: "TestA", refs: []string{"S1.1", "kubernetes#9"}},
	})
	want := strings.Replace(text, "  - proof: law old\n", "  - proof: scenario one; cache TestA, TestB; e2e \"it works\"\n", 1)
	want = strings.Replace(want, "Second.\n", "Second.\n  - proof: scenario one\n", 1)
	if got := d.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var parsed []string
	for _, e := range d.entries {
		parsed = append(parsed, e.String()+" "+strings.Join(e.refs, " ")+" "+strings.Join(e.modes, " ")+" "+e.reason)
	}
	if want := []string{"x.md:5 S1.1  ", "x.md:7 S1.2 iptables ipvs ", "x.md:8 kubernetes#5 kubernetes#6  nobody has it"}; !slices.Equal(parsed, want) {
		t.Errorf("parsed %q, want %q", parsed, want)
	}
	if again := parseDocument("x.md", d.String()); again.String() == d.String() {
		t.Error("proofs that nothing carries stay")
	}
}

func TestCheckEntries(t *testing.T) {
	for _, c := range []struct {
		text   string
		proofs []proof
		want   string
	}{
		{"- **S1.1** A.", []proof{{owner: "law", name: "walk", refs: []string{"S1.1"}}}, ""},
		{"- **S1.1** A.", nil, "x.md:1: no scenario, law or test that says something about iptables, userspace carries S1.1"},
		{
			"- **S1.1** A.",
			[]proof{{owner: "iptables", name: "TestA", refs: []string{"S1.1"}, mode: "iptables"}},
			"x.md:1: no scenario, law or test that says something about userspace carries S1.1",
		},
		{"- **S1.1** (iptables) A.", []proof{{owner: "iptables", name: "TestA", refs: []string{"S1.1"}, mode: "iptables"}}, ""},
		{"- **S1.1** (ipvs) A.", nil, ""}, // not offered yet
		{"- **S1.1** (ebpf) A.", nil, `x.md:1: "ebpf" is none of ["iptables" "ipvs" "userspace"]`},
		{"- **bold** A.", nil, "x.md:1: an entry begins with references such as S1.2 or kubernetes#123 in bold"},
		{"- **k8s#5** A.\n  - no test: it is elsewhere", nil, ""},
		{"- **S1.1** A.\n  - no test: it is elsewhere", nil, "x.md:1: a decision needs a test, not a reason to have none"},
		{
			"- **k8s#5** A.\n  - no test: it is elsewhere",
			[]proof{{owner: "law", name: "walk", refs: []string{"kubernetes#5"}}},
			"x.md:1: it says that there is no test, and law walk carries its number",
		},
		{
			"- **k8s#5** A.\n- **k8s#6, k8s#5** B.",
			[]proof{{owner: "law", name: "walk", refs: []string{"kubernetes#5"}}},
			"x.md:2: kubernetes#5 is in line 1 of x.md already",
		},
	} {
		d := parseDocument("x.md", c.text)
		d.attach(c.proofs)
		got := strings.Join(checkEntries(d.entries, []string{"iptables", "userspace"}), "\n")
		if got != c.want {
			t.Errorf("%q:\n%s\nwant\n%s", c.text, got, c.want)
		}
	}
}

func TestCheckReferences(t *testing.T) {
	d := parseDocument("x.md", "- **S1.1** A.")
	got := checkReferences(d.entries, []proof{{owner: "law", name: "walk", file: "walk.go", refs: []string{"S1.1", "S9.9", "kubernetes#5"}}})
	if want := []string{"walk.go: law walk carries S9.9, which no document has"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
