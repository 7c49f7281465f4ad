package netfiltertest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run gives the tests an xtables lock of their own: the usual one is shared
// by all network namespaces.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "netfiltertest")
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

// An action is one call that changes a kernel.
type action func(context.Context, netfilter.Kernel) error

func restores(tx netfilter.Transaction) action {
	return func(ctx context.Context, k netfilter.Kernel) error { return k.Restore(ctx, tx) }
}

func changes(p netfilter.SetPlan) action {
	return func(ctx context.Context, k netfilter.Kernel) error { return k.ChangeSets(ctx, p) }
}

var (
	chainNames = []string{"A", "B", "C"}
	setNames   = []string{"S", "T"}
)

// drawRule draws rules that are mostly good: of a transaction with a bad one
// nothing else is tested.
func drawRule(t *rapid.T, table netfilter.Table) netfilter.Rule {
	to := netip.MustParseAddrPort("10.0.0.1:80")
	jump := netfilter.Jump(rapid.SampledFrom(chainNames).Draw(t, "to"))
	good := []netfilter.Target{jump, jump, jump, netfilter.Goto(jump.Name), netfilter.Accept(), netfilter.Return(), {}}
	nat := []netfilter.Target{netfilter.DNAT(to), netfilter.Masquerade(false), netfilter.Redirect(80)}
	filter := []netfilter.Target{netfilter.Drop(), netfilter.Reject(netfilter.TCPReset), netfilter.Reject("icmp-port-unreachable")}
	bad := append(filter, netfilter.Jump("NONE"), netfilter.MapMark("S", "src"))
	if table == netfilter.NAT {
		good = append(good, nat...)
	} else {
		good, bad = append(good, filter...), append(nat, netfilter.Jump("NONE"))
	}
	good = append(good, netfilter.OrMark(1))
	r := netfilter.Rule{Protocol: netfilter.Is(dataplane.TCP), Target: rapid.SampledFrom(good).Draw(t, "target")}
	switch rapid.IntRange(0, 19).Draw(t, "more") {
	case 0, 1:
		r.Sets[0] = netfilter.SetMatch{Name: rapid.SampledFrom(setNames).Draw(t, "set"), Parts: "src"}
	case 2:
		r.Protocol = netfilter.ProtocolMatch{}
	case 3, 4:
		r.DestPort = netfilter.Port(80)
	case 5:
		r.Source = netfilter.MatchAddr(netip.IPv6Loopback())
	case 6:
		r.Target = rapid.SampledFrom(bad).Draw(t, "bad target")
	case 7:
		r.Target = netfilter.AddSet("S", "src", 0)
	}
	return r
}

func drawPlaced(t *rapid.T, label string) []netfilter.PlacedRule {
	var list []netfilter.PlacedRule
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, label) {
		list = append(list, netfilter.PlacedRule{
			Chain: rapid.SampledFrom([]string{"OUTPUT", "OUTPUT", "OUTPUT", "INPUT", "POSTROUTING", "FOREIGN"}).Draw(t, "chain"),
			At:    rapid.SampledFrom([]int{0, 0, 1, 1, 1, 2}).Draw(t, "at"),
			Rule:  netfilter.Rule{Target: netfilter.Jump(rapid.SampledFrom(chainNames).Draw(t, "to"))},
		})
	}
	return list
}

func drawRestore(t *rapid.T) action {
	tx := netfilter.Transaction{Table: rapid.SampledFrom([]netfilter.Table{netfilter.NAT, netfilter.Filter}).Draw(t, "table")}
	for _, name := range chainNames {
		switch rapid.IntRange(0, 7).Draw(t, name) {
		case 0, 1, 2, 3, 4:
			c := netfilter.Chain{Name: name}
			for range rapid.IntRange(0, 2).Draw(t, "rules") {
				c.Rules = append(c.Rules, drawRule(t, tx.Table))
			}
			tx.Chains = append(tx.Chains, c)
		case 5:
			tx.Delete = append(tx.Delete, name)
		}
	}
	tx.Insert = drawPlaced(t, "insert")
	if rapid.IntRange(0, 3).Draw(t, "removes") == 0 {
		tx.Remove = drawPlaced(t, "remove")
	}
	return restores(tx)
}

func drawSets(t *rapid.T) action {
	name := rapid.SampledFrom(setNames).Draw(t, "set")
	set := netfilter.Set{Name: name, Type: netfilter.HashIP, Family: dataplane.IPv4}
	set.Expires = rapid.Bool().Draw(t, "expires")
	if rapid.Bool().Draw(t, "other type") {
		set.Type = netfilter.HashNet
	}
	change := []netfilter.SetChange{{Set: name, Type: set.Type, Entry: netfilter.SetEntry{
		Net: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 3).Draw(t, "host"))}), 32),
	}}}
	return changes(rapid.SampledFrom([]netfilter.SetPlan{
		{Create: []netfilter.Set{set}},
		{Create: []netfilter.Set{set}},
		{Replace: []netfilter.Set{set}},
		{Destroy: []string{name}},
	}).Draw(t, "plan")).then(rapid.SampledFrom([]netfilter.SetPlan{
		{}, {}, {Create: []netfilter.Set{set}, Add: change}, {Remove: change},
	}).Draw(t, "entries"), set)
}

// then goes on to entries if the set is there as it should be.
func (a action) then(p netfilter.SetPlan, set netfilter.Set) action {
	return func(ctx context.Context, k netfilter.Kernel) error {
		if err := a(ctx, k); err != nil {
			return err
		}
		have, err := k.Sets(ctx, func(name string) bool { return name == set.Name })
		if err != nil || len(have) == 0 || !have[0].SameHeader(&set) {
			return err
		}
		return k.ChangeSets(ctx, p)
	}
}

// state is everything that can be read, as text.
func state(t *rapid.T, k netfilter.Kernel) string {
	text := ""
	for _, table := range []netfilter.Table{netfilter.NAT, netfilter.Filter} {
		chains, err := netfilter.ReadTable(t.Context(), k, table, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append([]string{"FOREIGN", "INPUT", "OUTPUT", "FORWARD", "POSTROUTING"}, chainNames...) {
			c, ok := chains[name]
			if !ok || c.Policy != "" && len(c.Rules) == 0 {
				continue // iptables-legacy makes its tables at the first use
			}
			text += fmt.Sprintf("%s %s\n", table, name)
			for _, r := range c.Rules {
				text += fmt.Sprintf("  %s\n", r)
			}
		}
	}
	sets, err := k.Sets(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sets {
		slices.SortFunc(s.Entries, func(a, b netfilter.SetEntry) int { return a.Net.Addr().Compare(b.Net.Addr()) })
		text += fmt.Sprintf("%s %s %t %v\n", s.Name, s.Type, s.Expires, s.Entries)
	}
	return text
}

// The kernel in memory accepts what the real one accepts, refuses what it
// refuses, and is in the same state afterwards, with either back end.
func TestKernelIsLikeTheRealOne(t *testing.T) {
	backends, err := netfilter.Backends(t.Context(), dataplane.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range backends {
		t.Run(b.Name, func(t *testing.T) {
			runtime.LockOSThread() // and never unlock: the thread ends with the test
			rapid.Check(t, func(t *rapid.T) {
				if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
					t.Fatalf("a new network namespace: %v: run as root", err)
				}
				host, fake := netfilter.NewHost(b, time.Second), netfiltertest.New(dataplane.IPv4)
				foreign := restores(netfilter.Transaction{Table: netfilter.NAT, Chains: []netfilter.Chain{{Name: "FOREIGN"}}})
				steps := append([]action{foreign}, rapid.SliceOfN(rapid.OneOf(
					rapid.Custom(drawRestore), rapid.Custom(drawRestore), rapid.Custom(drawSets),
				), 1, 6).Draw(t, "steps")...)
				for i, do := range steps {
					real, unreal := do(t.Context(), host), do(t.Context(), fake)
					if (real == nil) != (unreal == nil) {
						t.Fatalf("step %d: the kernel says %v, the one in memory %v", i, real, unreal)
					}
					if want, got := state(t, host), state(t, fake); got != want {
						t.Fatalf("step %d: the kernel is\n%s\nthe one in memory\n%s", i, want, got)
					}
				}
			})
		})
	}
}

func write(k netfilter.Kernel) error {
	return k.Restore(context.Background(), netfilter.Transaction{
		Table: netfilter.NAT, Chains: []netfilter.Chain{{Name: "A"}},
	})
}

func has(t *testing.T, k netfilter.Kernel, chain string) bool {
	t.Helper()
	chains, err := netfilter.ReadTable(t.Context(), k, netfilter.NAT, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, ok := chains[chain]
	return ok
}

func TestFaults(t *testing.T) {
	rows := []struct {
		fault   netfiltertest.Fault
		want    error
		applied bool
	}{
		{netfiltertest.Refused, netfiltertest.ErrInjected, false},
		{netfiltertest.Busy, netfilter.ErrLockTimeout, false},
		{netfiltertest.Lost, netfiltertest.ErrInjected, true},
	}
	for _, row := range rows {
		k := netfiltertest.New(dataplane.IPv4)
		k.Inject(netfiltertest.FailCall(1, row.fault))
		if err := write(k); !errors.Is(err, row.want) {
			t.Errorf("fault %d: %v, want %v", row.fault, err, row.want)
		}
		if has(t, k, "A") != row.applied {
			t.Errorf("fault %d: applied is %t", row.fault, !row.applied)
		}
		if err := write(k); err != nil {
			t.Errorf("after the fault: %v", err)
		}
	}
}

func TestFailSome(t *testing.T) {
	k := netfiltertest.New(dataplane.IPv4)
	k.Inject(netfiltertest.FailSome(rand.New(rand.NewPCG(1, 2)), 0.1, netfiltertest.Refused, netfiltertest.Lost))
	failed := 0
	for range 1000 {
		if write(k) != nil {
			failed++
		}
	}
	if failed < 50 || failed > 200 {
		t.Errorf("%d of 1000 calls failed, want about 100", failed)
	}
	if k.Writes() >= 1000 || k.Writes() <= 1000-failed {
		t.Errorf("%d writes of 1000 with %d failures, some of them lost", k.Writes(), failed)
	}
	k.Inject(nil)
	if err := write(k); err != nil {
		t.Errorf("without faults: %v", err)
	}
}
