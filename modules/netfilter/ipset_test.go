package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// everySet has a set of each type with entries.
func everySet(f dataplane.Family) []Set {
	a, b := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("192.0.2.1")
	net := netip.MustParsePrefix("10.1.0.0/16")
	if f == dataplane.IPv6 {
		a, b = netip.MustParseAddr("fd00::7"), netip.MustParseAddr("2001:db8::1")
		net = netip.MustParsePrefix("fd00:1::/64")
	}
	host := netip.PrefixFrom(a, a.BitLen())
	return []Set{
		{Name: "T-IP", Type: HashIP, Family: f, Entries: []SetEntry{{Net: host}}},
		{Name: "T-IPPORT", Type: HashIPPort, Family: f, Marks: true, Entries: []SetEntry{
			{Net: host, Protocol: dataplane.TCP, Port: 80, Mark: 0x4000, MarkMask: 0x4000},
			{Net: host, Protocol: dataplane.UDP, Port: 80},
		}},
		{Name: "T-IPPORTIP", Type: HashIPPortIP, Family: f, MaxEntries: 1 << 20, Entries: []SetEntry{
			{Net: host, Protocol: dataplane.SCTP, Port: 80, Second: b},
		}},
		{Name: "T-NET", Type: HashNet, Family: f, Entries: []SetEntry{{Net: net}, {Net: host}}},
		{Name: "T-PORT", Type: BitmapPort, FirstPort: 30000, LastPort: 32767, Entries: []SetEntry{{Port: 30001}}},
		{Name: "T-TIME", Type: HashIP, Family: f, Expires: true, Timeout: 10800},
		{Name: "T-IPPORTNET", Type: HashIPPortNet, Family: f, Entries: []SetEntry{
			{Net: host, Protocol: dataplane.TCP, Port: 80, SecondNet: net},
			{Net: host, Protocol: dataplane.TCP, Port: 80, SecondNet: netip.PrefixFrom(b, b.BitLen())},
		}},
	}
}

func setHost(f dataplane.Family) *Host { return NewHost(testBackend("nft", f), time.Second) }

func listSets(t testing.TB, h *Host) []Set {
	t.Helper()
	sets, err := h.Sets(t.Context(), func(name string) bool { return strings.HasPrefix(name, "T-") })
	if err != nil {
		t.Fatal(err)
	}
	return sets
}

func changeSets(t testing.TB, h *Host, p SetPlan) {
	t.Helper()
	if err := h.ChangeSets(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// Each set is there as wanted, and the ipset program says so too.
func TestSetsComeBack(t *testing.T) {
	for _, f := range dataplane.Families() {
		t.Run(f.String(), func(t *testing.T) {
			enterNamespace(t)
			h, want := setHost(f), everySet(f)
			command(t, "ipset", "create", "foreign", "hash:ip")
			changeSets(t, h, PlanSets(want, nil))
			if p := PlanSets(want, listSets(t, h)); !p.IsEmpty() {
				t.Errorf("still to do: %+v", p)
			}
			for _, s := range want {
				out := command(t, "ipset", "list", s.Name)
				if n := fmt.Sprintf("Number of entries: %d\n", len(s.Entries)); !strings.Contains(out, n) {
					t.Errorf("want %q in %s", n, out)
				}
			}
			other := setHost(dataplane.IPv4 + dataplane.IPv6 - f)
			if sets := listSets(t, other); len(sets) != 1 || sets[0].Type != BitmapPort {
				t.Errorf("the other family sees %v", sets)
			}
			changeSets(t, h, PlanSets(nil, listSets(t, h)))
			if out := command(t, "ipset", "list", "-n"); out != "foreign\n" {
				t.Errorf("left: %s", out)
			}
		})
	}
}

// From any list of sets to any other.
func TestPlanSetsConverges(t *testing.T) {
	all := everySet(dataplane.IPv4)
	changed := slices.Clone(all)
	changed[0].Timeout, changed[0].Expires = 60, true
	changed[1].Entries = []SetEntry{{Net: all[1].Entries[0].Net, Protocol: dataplane.TCP, Port: 80, Mark: 1, MarkMask: 1}}
	changed[3].Entries = all[3].Entries[:1]
	changed[4].FirstPort = 29000
	states := [][]Set{nil, all, all[:3], changed, all[2:], nil}
	enterNamespace(t)
	h := setHost(dataplane.IPv4)
	for i, from := range states {
		for j, to := range states {
			changeSets(t, h, PlanSets(from, listSets(t, h)))
			plan := PlanSets(to, listSets(t, h))
			changeSets(t, h, plan.Grow())
			changeSets(t, h, plan.Shrink())
			if p := PlanSets(to, listSets(t, h)); !p.IsEmpty() {
				t.Errorf("from state %d to %d: still to do: %+v", i, j, p)
			}
			changeSets(t, h, plan) // twice does no harm
		}
	}
}

func TestEntriesExpire(t *testing.T) {
	enterNamespace(t)
	h := setHost(dataplane.IPv4)
	s := everySet(dataplane.IPv4)[5]
	client := netip.MustParsePrefix("192.0.2.9/32")
	s.Entries = []SetEntry{{Net: client, Timeout: 500}}
	changeSets(t, h, SetPlan{Create: []Set{s}})
	got := listSets(t, h)[0].Entries
	if len(got) != 1 || got[0].Net != client || got[0].Timeout < 400 || got[0].Timeout > 500 {
		t.Fatalf("entries %+v", got)
	}
	if p := PlanSets([]Set{everySet(dataplane.IPv4)[5]}, listSets(t, h)); !p.IsEmpty() {
		t.Errorf("entries that expire were planned away: %+v", p)
	}
}

func TestSetInUse(t *testing.T) {
	enterNamespace(t)
	h := setHost(dataplane.IPv4)
	sets := everySet(dataplane.IPv4)
	changeSets(t, h, SetPlan{Create: sets})
	restore(t, h, Transaction{Table: NAT, Chains: []Chain{
		chain("A", Rule{Sets: [2]SetMatch{{Name: "T-IP", Parts: "src"}}, Target: Return()}),
	}})
	if err := h.ChangeSets(t.Context(), SetPlan{Destroy: []string{"T-IP"}}); !errors.Is(err, ErrSetInUse) {
		t.Errorf("destroying: %v, want ErrSetInUse", err)
	}
	longer := sets[0]
	longer.Expires, longer.Timeout = true, 7
	changeSets(t, h, SetPlan{Replace: []Set{longer}})
	if p := PlanSets([]Set{longer}, listSets(t, h)[:1]); !p.IsEmpty() {
		t.Errorf("after a replacement: %+v", p)
	}
	other := sets[0]
	other.Type, other.Entries = HashIPPort, nil
	if err := h.ChangeSets(t.Context(), SetPlan{Replace: []Set{other}}); err == nil {
		t.Error("a set in use was replaced by one of another type")
	}
	if out := command(t, "ipset", "list", "-n"); strings.Contains(out, swapName) {
		t.Errorf("left behind: %s", out)
	}
}

func TestSetErrors(t *testing.T) {
	enterNamespace(t)
	h := setHost(dataplane.IPv4)
	ip := everySet(dataplane.IPv4)[0]
	small := ip
	small.Name, small.MaxEntries, small.Entries = "T-SMALL", 64, nil
	for i := range 2000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		small.Entries = append(small.Entries, SetEntry{Net: netip.PrefixFrom(a, 32)})
	}
	other := ip
	other.Type = HashNet
	change := []SetChange{{Set: "T-NONE", Type: HashIP, Entry: ip.Entries[0]}}
	rows := []struct {
		plan SetPlan
		want error
		name string
	}{
		{SetPlan{Add: change}, ErrSetMissing, "T-NONE"},
		{SetPlan{Remove: change}, ErrSetMissing, "T-NONE"},
		{SetPlan{Create: []Set{ip, other}}, ErrSetExists, "T-IP"},
		{SetPlan{Create: []Set{small}}, ErrSetFull, "T-SMALL"},
		{SetPlan{Destroy: []string{"T-NONE"}}, nil, ""},
	}
	for _, row := range rows {
		err := h.ChangeSets(t.Context(), row.plan)
		if !errors.Is(err, row.want) || row.want != nil && !strings.Contains(err.Error(), row.name) {
			t.Errorf("%+v: %v, want %v of %s", row.plan, err, row.want, row.name)
		}
	}
}

// Thousands of entries, which come and go in several messages.
func TestManyEntries(t *testing.T) {
	for _, f := range dataplane.Families() {
		t.Run(f.String(), func(t *testing.T) {
			enterNamespace(t)
			h := setHost(f)
			s := everySet(f)[2]
			s.Entries = manyEntries(f, 5000)
			s.Marks = true
			for i := range s.Entries {
				s.Entries[i].Mark, s.Entries[i].MarkMask, s.Entries[i].Timeout = 1, 1, 0
			}
			changeSets(t, h, SetPlan{Create: []Set{s}})
			got := listSets(t, h)
			if len(got) != 1 || !reflect.DeepEqual(sorted(got[0].Entries), sorted(s.Entries)) {
				t.Fatalf("%d entries did not come back as they were", len(s.Entries))
			}
			s.Entries = s.Entries[:7]
			changeSets(t, h, PlanSets([]Set{s}, got))
			if n := len(listSets(t, h)[0].Entries); n != 7 {
				t.Errorf("%d entries, want 7", n)
			}
		})
	}
}

func manyEntries(f dataplane.Family, n int) []SetEntry {
	entries := make([]SetEntry, n)
	for i := range entries {
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		if f == dataplane.IPv6 {
			a = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
		}
		entries[i] = SetEntry{Net: netip.PrefixFrom(a, a.BitLen()), Protocol: dataplane.TCP, Port: 443, Second: a}
	}
	return entries
}

func sorted(entries []SetEntry) []SetEntry {
	return slices.SortedFunc(slices.Values(entries), func(a, b SetEntry) int { return a.Net.Addr().Compare(b.Net.Addr()) })
}

func TestNamesFit(t *testing.T) {
	long := strings.Repeat("P", 40)
	for _, name := range []string{SetName("PORTWAY-AFF-", "a"), SetName(long, "a")} {
		if len(name) > 31 || name == SetName("PORTWAY-AFF-", "b") {
			t.Errorf("set name %s", name)
		}
	}
	if name := ChainName("KUBE-SVC-", "default/web:http"); len(name) > 28 || !strings.HasPrefix(name, "KUBE-SVC-") {
		t.Errorf("chain name %s", name)
	}
	if ChainName(long, "a") == ChainName(long, "b") || len(ChainName(long, "a")) != 28 {
		t.Error("long prefixes hide the key")
	}
}

// BenchmarkSets compares netlink with one run of "ipset restore".
func BenchmarkSets(b *testing.B) {
	const n = 10000
	var many []Set
	var script strings.Builder
	one := Set{Name: "T-ONE", Type: HashIPPortIP, Family: dataplane.IPv4, Entries: manyEntries(dataplane.IPv4, n)}
	for i := range n {
		name := fmt.Sprintf("T-%d", i)
		many = append(many, Set{Name: name, Type: HashIP, Family: dataplane.IPv4, Expires: true, Timeout: 10800})
		fmt.Fprintf(&script, "create %s hash:ip timeout 10800\n", name)
	}
	fmt.Fprintln(&script, "create T-ONE hash:ip,port,ip")
	for _, e := range one.Entries {
		fmt.Fprintf(&script, "add T-ONE %s,tcp:443,%s\n", e.Net.Addr(), e.Second)
	}
	b.Run("netlink", func(b *testing.B) {
		enterNamespace(b)
		for b.Loop() {
			changeSets(b, setHost(dataplane.IPv4), SetPlan{Create: many})
			changeSets(b, setHost(dataplane.IPv4), SetPlan{Create: []Set{one}})
		}
	})
	b.Run("restore", func(b *testing.B) {
		enterNamespace(b)
		for b.Loop() {
			cmd := exec.CommandContext(b.Context(), "ipset", "restore", "-exist")
			cmd.Stdin = strings.NewReader(script.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		enterNamespace(b)
		changeSets(b, setHost(dataplane.IPv4), SetPlan{Create: append(many, one)})
		for b.Loop() {
			if n := len(listSets(b, setHost(dataplane.IPv4))); n != len(many)+1 {
				b.Fatal(n)
			}
		}
	})
}
