package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// printSave prints tables again, in the order in which they were read.
func printSave(t *testing.T, in string) string {
	t.Helper()
	var declared, rules, out strings.Builder
	table := Table("")
	finish := func() {
		if table != "" {
			fmt.Fprintf(&out, "*%s\n%s%sCOMMIT\n", table, declared.String(), rules.String())
		}
		declared.Reset()
		rules.Reset()
	}
	err := ReadSave(strings.NewReader(in), func(at Table, c Chain) error {
		if at != table {
			finish()
			table = at
		}
		policy := c.Policy
		if policy == "" {
			policy = "-"
		}
		fmt.Fprintf(&declared, ":%s %s [0:0]\n", c.Name, policy)
		for _, r := range c.Rules {
			fmt.Fprintf(&rules, "-A %s %s\n", c.Name, r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	finish()
	return out.String()
}

// saveLines returns the rules and chains of a save, sorted: their order in the
// declarations is the only thing that reading forgets.
func saveLines(s string) map[string]int {
	lines := map[string]int{}
	for line := range strings.Lines(s) {
		line = strings.TrimRight(line, "\n ")
		if line == "" || line[0] == '#' {
			continue
		}
		if i := strings.Index(line, " ["); line[0] == ':' && i > 0 {
			line = line[:i]
		}
		lines[line]++
	}
	return lines
}

// Nothing of a foreign rule set is lost, whatever is in it.
func TestReadSaveLosesNothing(t *testing.T) {
	files, err := filepath.Glob("testdata/save/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, file := range files {
		in, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, got := saveLines(string(in)), saveLines(printSave(t, string(in)))
		for line, n := range want {
			if got[line] != n {
				t.Errorf("%s: %q is there %d times, want %d", file, line, got[line], n)
			}
			delete(got, line)
		}
		for line := range got {
			t.Errorf("%s: %q was made up", file, line)
		}
	}
}

func TestOpaqueRules(t *testing.T) {
	rows := []struct {
		text   string
		opaque bool
		known  Rule // of the fields
	}{
		{"-j LOG --log-prefix \"a: -j \"", true, Rule{Target: Jump("LOG")}},
		{"-p tcp -m multiport --dports 80,443 -j WEB", true, Rule{Protocol: Is(dataplane.TCP), Target: Jump("WEB")}},
		{"-m limit --limit 5/min -g LATER", true, Rule{Target: Goto("LATER")}},
		{"-p tcp -j REDIRECT --to-ports 80-90", true, Rule{Protocol: Is(dataplane.TCP), Target: Redirect(0)}},
		{"-m mark --mark 0x1 -m comment --comment after -j A", false, Rule{Mark: MatchMark(1, 0xffffffff), Comment: "after", Target: Jump("A")}},
		{"-m comment --comment a -m comment --comment b -j A", false, Rule{Comment: "a", Target: Jump("A")}},
		{"-p tcp -m tcp -j A", false, Rule{Protocol: Is(dataplane.TCP), Target: Jump("A")}},
		{"-m mark --mark 0x1 -m mark --mark 0x2 -j A", true, Rule{Mark: MatchMark(1, 0xffffffff), Target: Jump("A")}},
		{"! ! -i lo -j A", true, Rule{Target: Jump("A")}},
		{"-m comment --comment \"no end -j A", true, Rule{}},
		{"-d 300.0.0.1/32 -j A", true, Rule{Target: Jump("A")}},
		{"-d 10.0.0.1/33 -j A", true, Rule{Target: Jump("A")}},
		{"-p tcp -m tcp --dport 70000 -j A", true, Rule{Protocol: Is(dataplane.TCP), Target: Jump("A")}},
		{"-m statistic --mode random --probability 2 -j A", true, Rule{Target: Jump("A")}},
		{"-m set --match-set X src,foo -j A", true, Rule{Target: Jump("A")}},
	}
	for _, row := range rows {
		r := ParseRule(row.text)
		if r.Text != row.text || r.String() != row.text {
			t.Errorf("%s: kept as %q, prints %q", row.text, r.Text, r)
		}
		if r.Opaque != row.opaque {
			t.Errorf("%s: opaque is %t", row.text, r.Opaque)
		}
		r.Text, r.Opaque = "", false
		if r != row.known {
			t.Errorf("%s:\n got %+v\nwant %+v", row.text, r, row.known)
		}
	}
}

func TestReadSaveRefusesNonsense(t *testing.T) {
	rows := []string{
		"-A PREROUTING -j ACCEPT\n",
		"*nat\n*filter\n",
		"*\n",
		"*nat\n:PREROUTING\nCOMMIT\n",
		"*nat\n:PREROUTING ACCEPT [0:0]\n-A OTHER -j ACCEPT\nCOMMIT\n",
		"*nat\n:PREROUTING ACCEPT [0:0]\n",
		"*nat\n-X\nCOMMIT\n",
		"# Table `nat' is incompatible, use 'nft' tool.\n",
	}
	for _, in := range rows {
		if err := ReadSave(strings.NewReader(in), func(Table, Chain) error { return nil }); err == nil {
			t.Errorf("%q was read without an error", in)
		}
	}
}

// A dump that was edited by hand may have the rules of a chain in two places.
func TestReadRulesetJoinsChains(t *testing.T) {
	rules, err := ReadRuleset(strings.NewReader(
		"*nat\n:A - [0:0]\n:B - [0:0]\n[1:2] -A A -i a -j B\n-A B -j RETURN\n-A A -i b -j B\nCOMMIT\n"))
	if err != nil {
		t.Fatal(err)
	}
	a := rules[NAT]["A"].Rules
	if len(a) != 2 || a[0].In.Name != "a" || a[1].In.Name != "b" {
		t.Errorf("chain A is %v", a)
	}
}

func TestSaveErrors(t *testing.T) {
	enterNamespace(t)
	h := NewHost(testBackend("nft", dataplane.IPv4), 0)
	restore(t, h, bigTransaction(200, 5))
	stop := errors.New("enough")
	if err := h.Save(t.Context(), []Table{NAT}, func(Table, Chain) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the visitor's error came back as %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Save(ctx, []Table{NAT}, func(Table, Chain) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	h.backend.command = "iptables-of-nobody"
	if err := h.Save(t.Context(), []Table{NAT}, func(Table, Chain) error { return nil }); err == nil {
		t.Error("a program that does not exist gave no error")
	}
}

// A listing that ends early is an error, however well it began.
func TestSaveIsCompleteOrFails(t *testing.T) {
	const begin = "echo '-P OUTPUT ACCEPT'; echo '-N A'; echo '-A A -j RETURN'; "
	rows := []struct{ name, script, want string }{
		{"the program fails", begin + "echo oh dear >&2; exit 4", "oh dear"},
		{"the program is killed", begin + "kill -9 $$", "killed"},
		{"the output makes no sense", begin + "echo nonsense", "nonsense"},
		{"the table is left out", begin + "echo \"iptables: table \\`nat' is incompatible, use 'nft' tool.\" >&2; exit 1", ErrIncompatible.Error()},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			enterNamespace(t)
			command(t, "nft", "add table ip nat")
			programs(t, row.script, "iptables-nft")
			_, err := ReadTable(t.Context(), NewHost(testBackend(NFT, dataplane.IPv4), 0), NAT, nil)
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q in it", err, row.want)
			}
		})
	}
}

// bigTransaction has chains of a shape as the iptables plane writes them.
func bigTransaction(chains, endpoints int) Transaction {
	tx := Transaction{Table: NAT}
	for i := range chains {
		c := Chain{Name: fmt.Sprintf("KUBE-SVC-%08d", i)}
		for n := endpoints; n > 0; n-- {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(n)}), 8080)
			c.Rules = append(c.Rules, Rule{
				Protocol: Is(dataplane.TCP), Comment: fmt.Sprintf("default/service-%d:http", i),
				Probability: OneIn(n), Target: DNAT(to),
			})
		}
		tx.Chains = append(tx.Chains, c)
	}
	return tx
}

func BenchmarkAppend(b *testing.B) {
	tx := bigTransaction(10000, 5)
	var buf []byte
	for b.Loop() {
		buf = tx.Append(buf[:0])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*50000), "ns/rule")
}

func BenchmarkReadSave(b *testing.B) {
	tx := bigTransaction(10000, 5)
	in := tx.Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		err := ReadSave(bytes.NewReader(in), func(_ Table, c Chain) error {
			n += len(c.Rules)
			return nil
		})
		if err != nil || n != 50000 {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*50000), "ns/rule")
}

// Several tables are read as each by itself, with as few programs as the back
// end needs for it, and none for a table that nobody has made.
func TestSaveSeveral(t *testing.T) {
	for _, f := range dataplane.Families() {
		onBackends(t, f, func(t *testing.T, h *Host) {
			for _, table := range []Table{Mangle, NAT} {
				restore(t, h, Transaction{Table: table, Chains: []Chain{chain("IN-"+strings.ToUpper(string(table)), Rule{Target: Accept()})}})
			}
			restore(t, h, Transaction{Table: Raw, Chains: []Chain{chain("OTHER")}})
			got := make(map[string]int)
			err := h.Save(t.Context(), []Table{Filter, Mangle, NAT}, func(table Table, c Chain) error {
				if c.Policy == "" {
					got[fmt.Sprintf("%s %s", table, c.Name)] = len(c.Rules)
				}
				return nil
			})
			if want := map[string]int{"mangle IN-MANGLE": 1, "nat IN-NAT": 1}; err != nil || !maps.Equal(got, want) {
				t.Errorf("read %v (%v), want %v", got, err, want)
			}
			h.backend.command = "iptables-of-nobody"
			if err := h.Save(t.Context(), []Table{Filter}, func(Table, Chain) error { return nil }); err != nil {
				t.Errorf("a program is run for a table that is not there: %v", err)
			}
		})
	}
}

// TestKnownChainsAreNotParsed: who knows a chain by its text gets no rules of it, and
// is not asked about the kernel's own chains, nor about empty ones.
func TestKnownChainsAreNotParsed(t *testing.T) {
	const saved = `*nat
:OUTPUT ACCEPT [0:0]
:KUBE-A - [0:0]
:KUBE-B - [0:0]
:KUBE-EMPTY - [0:0]
-A OUTPUT -j KUBE-A
-A KUBE-A -s 10.0.0.1/32 -j ACCEPT
-A KUBE-A -j KUBE-B
-A KUBE-B -j RETURN
COMMIT
`
	texts, visited := map[string]string{}, map[string]int{}
	known := func(table Table, chain string, rules []byte) bool {
		texts[string(table)+" "+chain] = string(rules)
		return chain == "KUBE-A"
	}
	err := readSave(strings.NewReader(saved), known, func(_ Table, c Chain) error {
		visited[c.Name] = len(c.Rules)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantTexts := map[string]string{"nat KUBE-A": "-s 10.0.0.1/32 -j ACCEPT\n-j KUBE-B\n", "nat KUBE-B": "-j RETURN\n"}
	if !maps.Equal(texts, wantTexts) {
		t.Errorf("asked about %q, want %q", texts, wantTexts)
	}
	if want := (map[string]int{"OUTPUT": 1, "KUBE-B": 1, "KUBE-EMPTY": 0}); !maps.Equal(visited, want) {
		t.Errorf("visited %v, want %v", visited, want)
	}
}
