package netfilter

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

func restore(t testing.TB, h *Host, tx Transaction) {
	t.Helper()
	if err := h.Restore(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

func jump(from, to string) PlacedRule {
	return PlacedRule{Chain: from, At: 1, Rule: Rule{Target: Jump(to)}}
}

func TestRestoreTouchesNothingElse(t *testing.T) {
	onBackends(t, dataplane.IPv4, func(t *testing.T, h *Host) {
		foreign := []Rule{{Target: Accept()}}
		restore(t, h, Transaction{Table: NAT, Chains: []Chain{chain("FOREIGN", foreign...)}})
		restore(t, h, Transaction{
			Table:  NAT,
			Chains: []Chain{chain("A", Rule{Target: Jump("B")}), chain("B", Rule{Target: Accept()}), chain("OLD")},
			Insert: []PlacedRule{jump("PREROUTING", "A"), {Chain: "PREROUTING", Rule: Rule{Target: Jump("FOREIGN")}}},
		})
		restore(t, h, Transaction{
			Table:  NAT,
			Chains: []Chain{chain("A", Rule{Target: Return()})},
			Insert: []PlacedRule{{Chain: "PREROUTING", At: 2, Rule: Rule{Target: Return()}}},
			Delete: []string{"B", "OLD", "NEVER-WAS"},
		})
		got := save(t, h, NAT)
		sameRules(t, got["FOREIGN"].Rules, foreign)
		sameRules(t, got["A"].Rules, []Rule{{Target: Return()}})
		sameRules(t, got["PREROUTING"].Rules, []Rule{
			{Target: Jump("A")}, {Target: Return()}, {Target: Jump("FOREIGN")},
		})
		want := []string{"A", "FOREIGN", "INPUT", "OUTPUT", "POSTROUTING", "PREROUTING"}
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
			t.Errorf("chains %v, want %v", names, want)
		}
		restore(t, h, Transaction{Table: NAT, Remove: []PlacedRule{jump("PREROUTING", "FOREIGN")}})
		sameRules(t, save(t, h, NAT)["PREROUTING"].Rules, []Rule{{Target: Jump("A")}, {Target: Return()}})
	})
}

// Each row is refused whole, and the error says where as far as the tool does.
func TestRestoreIsAllOrNothing(t *testing.T) {
	good := chain("GOOD", Rule{Target: Accept()}, Rule{Target: Accept()})
	bad := func(r Rule) []Chain { return []Chain{good, chain("BAD", Rule{Target: Accept()}, r)} }
	longName := strings.Repeat("X", 29)
	rows := []struct {
		name        string
		tx          Transaction
		nft, legacy string // the chain that is blamed
	}{
		{"no such chain", Transaction{Chains: bad(Rule{Target: Jump("MISSING")})}, "BAD", "BAD"},
		{"no such set", Transaction{Chains: bad(Rule{Sets: [2]SetMatch{{Name: "MISSING", Parts: "src"}}})}, "BAD", "BAD"},
		{"other family", Transaction{Chains: bad(Rule{Source: MatchAddr(netip.IPv6Loopback())})}, "BAD", "BAD"},
		{"port without protocol", Transaction{Chains: bad(Rule{DestPort: Port(1)})}, "BAD", "BAD"},
		{"wrong table", Transaction{Chains: bad(Rule{Target: Reject("icmp-port-unreachable")})}, "BAD", ""},
		{"long name", Transaction{Chains: []Chain{good, chain(longName)}}, longName, longName},
		{"chain in use", Transaction{Chains: bad(Rule{Target: Jump("USED")}), Delete: []string{"USED"}}, "USED", "USED"},
		{"nothing to remove", Transaction{Chains: bad(Rule{}), Remove: []PlacedRule{jump("OUTPUT", "GOOD")}}, "OUTPUT", "OUTPUT"},
		{"masquerade before routing", Transaction{
			Chains: []Chain{good, chain("BAD", Rule{Target: Masquerade(false)})},
			Insert: []PlacedRule{jump("PREROUTING", "BAD")},
		}, "PREROUTING", ""},
	}
	for _, row := range rows {
		row.tx.Table = NAT
		onBackends(t, dataplane.IPv4, func(t *testing.T, h *Host) {
			before := []Rule{{Target: Return()}}
			restore(t, h, Transaction{Table: NAT, Chains: []Chain{chain("GOOD", before...)}})
			err := h.Restore(t.Context(), row.tx)
			var refused *RestoreError
			if !errors.As(err, &refused) {
				t.Fatalf("%s: got %v, want a RestoreError", row.name, err)
			}
			want := row.nft
			if h.backend.Name == "legacy" {
				want = row.legacy
			}
			if refused.Chain != want || (want != "") != (refused.Line > 0) {
				t.Errorf("%s: chain %q, line %d, want chain %q: %v", row.name, refused.Chain, refused.Line, want, err)
			}
			if lines := strings.Split(row.tx.String(), "\n"); refused.Line > 0 && lines[refused.Line-1] != refused.Text {
				t.Errorf("%s: line %d is %q, the error says %q", row.name, refused.Line, lines[refused.Line-1], refused.Text)
			}
			sameRules(t, save(t, h, NAT)["GOOD"].Rules, before)
		})
	}
}

// holdLock takes the xtables lock until the test ends.
func holdLock(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
}

// Proves kubernetes#7370.
func TestLockIsWaitedForWithALimit(t *testing.T) {
	enterNamespace(t)
	h := NewHost(testBackend("legacy", dataplane.IPv4), time.Second)
	holdLock(t)
	err := h.Restore(t.Context(), Transaction{Table: NAT, Chains: []Chain{chain("A")}})
	if !errors.Is(err, ErrLockTimeout) {
		t.Fatalf("got %v, want ErrLockTimeout", err)
	}
}

func TestRestoreEndsWithItsContext(t *testing.T) {
	enterNamespace(t)
	h := NewHost(testBackend("legacy", dataplane.IPv4), time.Minute)
	holdLock(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := h.Restore(ctx, Transaction{Table: NAT, Chains: []Chain{chain("A")}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the context's error", err)
	}
}

// What iptables printed in versions that are not here, and what must be read
// from it.
func TestFailedLine(t *testing.T) {
	rows := []struct {
		output string
		want   int
	}{
		{"iptables-restore v1.6.1: Couldn't load match `foo':No such file\n\nError occurred at line: 12\nTry ...", 12},
		{"iptables-restore: line 3 failed\n", 3},
		{"iptables-restore v1.8.7 (nf_tables): \nline 5: CHAIN_DEL failed (Device or resource busy): chain B\n", 5},
		{"iptables-nft-restore: line 2 failed: No chain/target/match by that name.\n", 2},
		{"iptables-restore v1.8.4 (nf_tables): Couldn't load target `X'\nError occurred at line: 7\n", 7},
		{"out of memory", 0},
		{"", 0},
	}
	for _, row := range rows {
		if got := failedLine([]byte(row.output)); got != row.want {
			t.Errorf("%q: line %d, want %d", row.output, got, row.want)
		}
	}
}

func TestSplit(t *testing.T) {
	tx := Transaction{
		Table: NAT,
		Chains: []Chain{
			chain("TOP", Rule{Target: Jump("MID")}, Rule{Target: Goto("LOW")}),
			chain("MID", Rule{Target: Jump("LOW")}, Rule{Target: Jump("ELSEWHERE")}),
			chain("LOW", Rule{Target: Accept()}),
			chain("ALONE"),
		},
		Remove: []PlacedRule{jump("OUTPUT", "OLD")},
		Insert: []PlacedRule{jump("OUTPUT", "TOP")},
		Delete: []string{"OLD"},
	}
	if got := tx.Split(4); len(got) != 1 || got[0].String() != tx.String() {
		t.Errorf("a transaction that fits was cut: %v", got)
	}
	var order []string
	parts := tx.Split(1)
	for i, part := range parts {
		order = append(order, part.Chains[0].Name)
		if last := i == len(parts)-1; last != (len(part.Insert) == 1 && len(part.Remove) == 1 && len(part.Delete) == 1) {
			t.Errorf("part %d of %d: %s", i, len(parts), part)
		}
	}
	if want := []string{"LOW", "MID", "TOP", "ALONE"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	long := Transaction{Table: NAT, Chains: []Chain{
		chain("A", make([]Rule, 2*rulesPerChain)...), chain("B", make([]Rule, 2*rulesPerChain)...), chain("C", Rule{}), chain("D"),
	}}
	var sizes []int
	for _, part := range long.Split(3) {
		sizes = append(sizes, len(part.Chains))
	}
	if want := []int{1, 3}; !slices.Equal(sizes, want) {
		t.Errorf("parts of long chains have %v chains, want %v", sizes, want)
	}
}
