package netfilter

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run gives the tests an xtables lock of their own: the usual one, in /run,
// is shared by all network namespaces.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "netfilter")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "xtables.lock"))
	// Each check makes a namespace; ask for more with -rapid.checks.
	if err := flag.Set("rapid.checks", "30"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return rig.Main(m)
}

// enterNamespace moves the test's goroutine into a new network namespace,
// for good: its thread ends with it. Subtests need one of their own.
func enterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Fatalf("a new network namespace: %v: run as root", err)
	}
}

// tester is what command needs of a test, be it one of rapid or not.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Context() context.Context
}

// command runs a program in the namespace.
func command(t tester, words ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
	return string(out)
}

func testBackend(name string, f dataplane.Family) Backend {
	return Backend{Name: name, Family: f, RandomFully: true, command: program(f) + "-" + name}
}

// onBackends runs a test on both back ends, each in a fresh namespace.
func onBackends(t *testing.T, f dataplane.Family, test func(t *testing.T, h *Host)) {
	for _, name := range []string{"nft", "legacy"} {
		t.Run(fmt.Sprintf("%s/%s", name, f), func(t *testing.T) {
			enterNamespace(t)
			test(t, NewHost(testBackend(name, f), time.Second))
		})
	}
}

// makeSets makes the sets that the rules of the tests name.
func makeSets(t testing.TB, f dataplane.Family) {
	t.Helper()
	command(t, "ipset", "create", "CLIENTS", "hash:ip", "timeout", "60", "family", inet(f))
	command(t, "ipset", "create", "VIPS", "hash:ip,port", "skbinfo", "family", inet(f))
	command(t, "ipset", "create", "RANGES", "hash:ip,port,ip", "family", inet(f))
}

func save(t testing.TB, h *Host, table Table) map[string]Chain {
	t.Helper()
	chains, err := ReadTable(t.Context(), h, table, nil)
	if err != nil {
		t.Fatal(err)
	}
	return chains
}

func text(rules []Rule) string {
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

func sameRules(t testing.TB, got, want []Rule) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("rule %d is missing: %s", i+1, want[i])
		case i >= len(want):
			t.Errorf("rule %d is too much: %s", i+1, got[i])
		case got[i] != want[i]:
			t.Errorf("rule %d:\n got %+v\nwant %+v", i+1, got[i], want[i])
		}
	}
	if t.Failed() {
		t.Logf("all rules:\n%s", text(got))
	}
}

func chain(name string, rules ...Rule) Chain { return Chain{Name: name, Rules: slices.Clip(rules)} }
