package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/lab/internal/command"
)

// fakeTables is iptables and ip6tables with memory: filter and nat tables that
// refuse what the kernel refuses.
type fakeTables struct {
	tables map[string]map[string]*chain // "iptables filter" -> chains
	nft    map[string]string            // nftables table -> its listing
}

type chain struct {
	policy string
	rules  []string
}

func newFake() *fakeTables {
	f := &fakeTables{tables: map[string]map[string]*chain{}, nft: map[string]string{}}
	for _, program := range programs() {
		f.tables[program+" filter"] = map[string]*chain{"INPUT": {policy: "ACCEPT"}, "FORWARD": {policy: "ACCEPT"}, "OUTPUT": {policy: "ACCEPT"}}
		f.tables[program+" nat"] = map[string]*chain{"PREROUTING": {policy: "ACCEPT"}, "OUTPUT": {policy: "ACCEPT"}, "POSTROUTING": {policy: "ACCEPT"}}
	}
	return f
}

func (f *fakeTables) Run(_ context.Context, c command.Cmd) (string, error) {
	if c.Args[0] == "nft" {
		return f.runNFT(c.Args[1:])
	}
	args := slices.DeleteFunc(slices.Clone(c.Args[1:]), func(a string) bool { return a == "--wait" || a == "-n" })
	program, verb, _ := strings.Cut(c.Args[0], "-")
	switch verb {
	case "save":
		return f.save(program), nil
	case "restore":
		raw, err := io.ReadAll(c.Stdin)
		if err != nil {
			return "", err
		}
		return "", f.restore(program, string(raw))
	}
	return f.one(program+" filter", args)
}

func (f *fakeTables) runNFT(args []string) (string, error) {
	if args[1] == "tables" {
		var out strings.Builder
		for name := range f.nft {
			fmt.Fprintf(&out, "table %s\n", name)
		}
		return out.String(), nil
	}
	name := strings.Join(args[2:], " ")
	listing, ok := f.nft[name]
	if !ok {
		return "", errors.New("no such table")
	}
	if args[0] == "delete" {
		delete(f.nft, name)
	}
	return listing, nil
}

func (f *fakeTables) one(table string, args []string) (string, error) {
	chains := f.tables[table]
	name, rule := args[1], strings.Join(args[2:], " ")
	if args[0] == "-N" {
		if chains[name] != nil {
			return "", errors.New("chain exists")
		}
		chains[name] = &chain{}
		return "", nil
	}
	c := chains[name]
	if c == nil {
		return "", fmt.Errorf("no chain %s in %s", name, table)
	}
	i := slices.Index(c.rules, rule)
	switch args[0] {
	case "-L":
	case "-S":
		return strings.Join(append([]string{"-P " + name + " " + c.policy}, c.rules...), "\n") + "\n", nil
	case "-P":
		c.policy = rule
	case "-I":
		c.rules = slices.Insert(c.rules, 0, rule)
	case "-A":
		c.rules = append(c.rules, rule)
	case "-C", "-D":
		if i < 0 {
			return "", errors.New("no such rule")
		}
		if args[0] == "-D" {
			c.rules = slices.Delete(c.rules, i, i+1)
		}
	case "-F":
		c.rules = nil
	case "-X":
		for other, oc := range chains {
			for _, r := range oc.rules {
				if strings.HasSuffix(r, "-j "+name) {
					return "", fmt.Errorf("chain %s is in use by %s", name, other)
				}
			}
		}
		delete(chains, name)
	default:
		return "", fmt.Errorf("fake iptables does not know %v", args)
	}
	return "", nil
}

func (f *fakeTables) restore(program, input string) error {
	table := ""
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = program + " " + line[1:]
		case line == "COMMIT":
		default:
			if _, err := f.one(table, strings.Fields(line)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fakeTables) save(program string) string {
	var out strings.Builder
	for _, table := range []string{"filter", "nat"} {
		chains := f.tables[program+" "+table]
		fmt.Fprintf(&out, "# Generated\n*%s\n", table)
		names := make([]string, 0, len(chains))
		for name := range chains {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			policy := chains[name].policy
			if policy == "" {
				policy = "-"
			}
			fmt.Fprintf(&out, ":%s %s [0:0]\n", name, policy)
		}
		for _, name := range names {
			for _, r := range chains[name].rules {
				fmt.Fprintf(&out, "-A %s %s\n", name, r)
			}
		}
		fmt.Fprintln(&out, "COMMIT")
	}
	return out.String()
}

// dockerStarts does to the machine what dockerd does.
func dockerStarts(t *testing.T, f *fakeTables, sysctl string) {
	t.Helper()
	for _, line := range []string{
		"filter -N DOCKER", "filter -N DOCKER-ISOLATION-STAGE-1", "filter -N DOCKER-ISOLATION-STAGE-2",
		"filter -A DOCKER-ISOLATION-STAGE-1 -i br-portway ! -o br-portway -j DOCKER-ISOLATION-STAGE-2",
		"filter -A DOCKER-USER -j RETURN", "filter -I FORWARD -j DOCKER-ISOLATION-STAGE-1", "filter -I FORWARD -j DOCKER-USER",
		"filter -P FORWARD DROP",
		"nat -N DOCKER", "nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
	} {
		table, rest, _ := strings.Cut(line, " ")
		if _, err := f.one("iptables "+table, strings.Fields(rest)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range sysctls() {
		write(t, filepath.Join(sysctl, name), "1")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestEverythingIsAsBefore(t *testing.T) {
	f, sysctl := newFake(), t.TempDir()
	for _, name := range sysctls() {
		write(t, filepath.Join(sysctl, name), "0\n")
	}
	// Rules of the machine's owner.
	for _, line := range []string{"-I FORWARD -i wg0 -j ACCEPT", "-I INPUT -p tcp --dport 22 -j ACCEPT"} {
		if _, err := f.one("iptables filter", strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
	}
	before4, before6 := f.save("iptables"), f.save("ip6tables")
	h := Host{Run: f, Sysctl: sysctl}
	saved, err := h.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Guard(t.Context(), "br-portway"); err != nil {
		t.Fatal(err)
	}
	dockerStarts(t, f, sysctl)
	if err := h.Guard(t.Context(), "br-portway"); err != nil { // again, as `lab up` does
		t.Fatal(err)
	}
	if err := h.Unguard(t.Context(), "br-portway"); err != nil {
		t.Fatal(err)
	}
	if err := h.Restore(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	if got := f.save("iptables"); got != before4 {
		t.Errorf("iptables are now\n%s\nand were\n%s", got, before4)
	}
	if got := f.save("ip6tables"); got != before6 {
		t.Errorf("ip6tables are now\n%s\nand were\n%s", got, before6)
	}
	for _, name := range sysctls() {
		if got, err := os.ReadFile(filepath.Join(sysctl, name)); err != nil || string(got) != "0" {
			t.Errorf("sysctl %s is now %q (%v)", name, got, err)
		}
	}
}

func TestGuardComesFirstAndOnce(t *testing.T) {
	f := newFake()
	h := Host{Run: f}
	for range 2 {
		if err := h.Guard(t.Context(), "br0"); err != nil {
			t.Fatal(err)
		}
	}
	const rule = "-i br0 ! -o br0 -j REJECT"
	if got := f.tables["iptables filter"]["DOCKER-USER"].rules; !slices.Equal(got, []string{rule}) {
		t.Errorf("DOCKER-USER holds %v", got)
	}
	if got := f.tables["ip6tables filter"]["FORWARD"].rules; !slices.Equal(got, []string{rule}) {
		t.Errorf("IPv6 FORWARD holds %v", got)
	}
}

func TestOtherDockerKeepsItsChains(t *testing.T) {
	f, sysctl := newFake(), t.TempDir()
	h := Host{Run: f, Sysctl: sysctl}
	if err := h.Guard(t.Context(), "br0"); err != nil {
		t.Fatal(err)
	}
	dockerStarts(t, f, sysctl)
	before := f.save("iptables")
	saved, err := h.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !saved.Docker {
		t.Error("another Docker was not noticed")
	}
	if err := h.Restore(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	if got := f.save("iptables"); got != before {
		t.Errorf("iptables are now\n%s\nand were\n%s", got, before)
	}
}

func TestUnguardOfNothing(t *testing.T) {
	if err := (Host{Run: newFake()}).Unguard(t.Context(), "br0"); err != nil {
		t.Error(err)
	}
}

func TestEmptyTablesOfIptablesGo(t *testing.T) {
	const empty = "table ip nat {\n\tchain OUTPUT {\n\t\ttype nat hook output priority -100; policy accept;\n\t}\n}\n"
	f := newFake()
	f.nft["ip raw"] = empty // was there before
	h := Host{Run: f, Sysctl: t.TempDir()}
	saved, err := h.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.nft["ip nat"] = empty
	f.nft["ip mangle"] = "table ip mangle {\n\tchain FORWARD {\n\t\ttype filter hook forward priority mangle; policy accept;\n\t\tcounter accept\n\t}\n}\n"
	f.nft["ip6 filter"] = "table ip6 filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n"
	f.nft["inet mine"] = "table inet mine {\n}\n"
	if err := h.Restore(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"ip raw": true, "ip nat": false, "ip mangle": true, "ip6 filter": true, "inet mine": true} {
		if _, got := f.nft[name]; got != want {
			t.Errorf("table %s is there: %v, want %v", name, got, want)
		}
	}
}
