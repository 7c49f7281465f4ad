package program

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

// The mode of these tests has a chain with buckets, a chain of each Service and
// a set.
const (
	top     = "TEST-TOP"
	setName = "TEST-SET"
	hated   = 666 // the kernel of these tests refuses this port
)

func topChain() ChainID { return ChainID{netfilter.NAT, top} }

func testLayout() *Layout {
	return &Layout{
		Mode: "test", Family: dataplane.IPv4, Tables: []netfilter.Table{netfilter.Filter, netfilter.NAT},
		Hooks:        []Hook{{ChainID{netfilter.NAT, "PREROUTING"}, []netfilter.Rule{{Target: netfilter.Jump(top)}}}},
		Buckets:      map[ChainID][]Bucket{topChain(): AddrBuckets(top, dataplane.IPv4)},
		Sets:         []netfilter.Set{{Name: setName, Type: netfilter.HashIP, Family: dataplane.IPv4}},
		GivesMeaning: func(name string) bool { return name == setName },
		OwnsChain:    func(_ netfilter.Table, name string) bool { return strings.HasPrefix(name, "TEST-") },
		OwnsSet:      func(name string) bool { return strings.HasPrefix(name, "TEST-") },
		Alive:        topChain(),
		Fixed:        func(*dataplane.Snapshot) map[netfilter.SetChange]bool { return nil },
	}
}

func testFrame() Frame {
	return Frame{
		Roots: []ChainID{topChain()},
		Head:  map[ChainID][]netfilter.Rule{topChain(): {{Comment: "head"}}},
		Tail:  map[ChainID][]netfilter.Rule{topChain(): {{Comment: "tail"}}},
		Late:  map[ChainID][]netfilter.Rule{topChain(): {{Comment: "late"}}},
	}
}

// testSource is a version of a ServicePort that is led to a port.
type testSource struct {
	sp   *dataplane.ServicePort
	port uint16
	// chain is the name of the chain if it is not what it should be.
	chain string
}

func (s testSource) ServicePort() *dataplane.ServicePort { return s.sp }

func (s testSource) Fragment() *Fragment {
	f := &Fragment{Name: s.sp.Name}
	chain := "TEST-" + s.sp.Name.Name + s.chain
	f.AddChain(netfilter.NAT, chain, netfilter.Rule{
		Protocol: netfilter.Is(dataplane.TCP), Target: netfilter.DNAT(netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), s.port)),
	})
	for _, fe := range s.sp.Frontends {
		in := ChainID{netfilter.NAT, AddrBucket(top, fe.Addr)}
		match := netfilter.MatchAddr(fe.Addr)
		f.AddRules(in, fe.Key(dataplane.TCP), netfilter.Rule{Destination: match, Comment: "first"})
		f.AddRules(in, fe.Key(dataplane.TCP), netfilter.Rule{Destination: match, Target: netfilter.Jump(chain)})
		f.AddEntry(netfilter.SetChange{Set: setName, Type: netfilter.HashIP, Entry: netfilter.SetEntry{Net: netip.PrefixFrom(fe.Addr, 32)}})
	}
	return f
}

// fickle is a kernel that refuses a port, and notes what it is asked for.
type fickle struct {
	netfilter.Kernel
	steps []string
	err   error // of every write of rules
}

func (k *fickle) Restore(ctx context.Context, tx netfilter.Transaction) error {
	text := tx.String()
	switch {
	case k.err != nil:
		return k.err
	case strings.Contains(text, fmt.Sprintf(":%d\n", hated)):
		return &netfilter.RestoreError{Table: tx.Table, Err: errors.New("exit status 1")}
	}
	k.steps = append(k.steps, text)
	return k.Kernel.Restore(ctx, tx)
}

func (k *fickle) ChangeSets(ctx context.Context, p netfilter.SetPlan) error {
	for _, c := range p.Add {
		k.steps = append(k.steps, "add "+c.EntryText())
	}
	return k.Kernel.ChangeSets(ctx, p)
}

// bench is a Program with what its mode would know.
type bench struct {
	*testing.T
	kernel  *fickle
	program *Program
	ports   map[string]uint16 // where a ServicePort leads; 80 by default
	partial map[string]error
	chains  map[string]string
	now     time.Time
	settled []string
}

func newBench(t *testing.T) *bench {
	b := &bench{
		T: t, kernel: &fickle{Kernel: netfiltertest.New(dataplane.IPv4)}, now: time.Unix(1000, 0),
		ports: make(map[string]uint16), partial: make(map[string]error), chains: make(map[string]string),
	}
	b.program = New(testLayout(), b.kernel, 0)
	return b
}

func (b *bench) wish(want *dataplane.Snapshot) Wish {
	return Wish{
		SyncRequest: dataplane.SyncRequest{Now: b.now, Want: want}, Frame: testFrame(),
		Claimed: func([]netfilter.Set) []dataplane.FrontendKey { return nil },
		Source: func(sp *dataplane.ServicePort) (Source, error) {
			port := b.ports[sp.Name.Name]
			if port == 0 {
				port = 80
			}
			return testSource{sp, port, b.chains[sp.Name.Name]}, b.partial[sp.Name.Name]
		},
		Settle: func(names []dataplane.ServicePortName) error {
			b.kernel.steps = append(b.kernel.steps, "settle")
			for _, n := range names {
				b.settled = append(b.settled, n.Name)
			}
			return nil
		},
	}
}

func (b *bench) sync(w Wish) dataplane.Report {
	b.Helper()
	b.settled, b.kernel.steps = nil, nil
	r, err := b.program.Sync(b.Context(), w)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// led tells where the chain of a Service leads; 0 if there is none.
func (b *bench) led(name string) uint16 {
	b.Helper()
	chains, err := netfilter.ReadTable(b.Context(), b.kernel, netfilter.NAT, nil)
	if err != nil {
		b.Fatal(err)
	}
	if c, ok := chains["TEST-"+name]; ok {
		return c.Rules[0].Target.To.Port()
	}
	return 0
}

func failed(r dataplane.Report) []string {
	var names []string
	for _, f := range r.Failed {
		names = append(names, f.Name.Name)
	}
	return names
}

// services are n of them, s0 to sn, with an address each.
func services(t testing.TB, from *dataplane.Snapshot, n int) *dataplane.Snapshot {
	t.Helper()
	b := from.Edit()
	for i := range n {
		b.Put(&dataplane.ServicePort{
			Name: name(fmt.Sprint("s", i)),
			Frontends: []*dataplane.Frontend{{
				Kind: dataplane.ClusterIP, Family: dataplane.IPv4, Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), Port: 80,
				Routes: [3]dataplane.Route{{Action: dataplane.Reject}, {Action: dataplane.Reject}, {Action: dataplane.Reject}},
			}},
		})
	}
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func name(s string) dataplane.ServicePortName {
	return dataplane.ServicePortName{Namespace: "default", Name: s, Protocol: dataplane.TCP}
}

// Rules first, then Settle, then the meaning of addresses; what is late comes
// after all else on a cold start, and at once otherwise.
func TestOrderOfSteps(t *testing.T) {
	b := newBench(t)
	want := services(t, dataplane.Empty(), 3)
	b.sync(b.wish(want))
	at := func(text string) int {
		return slices.IndexFunc(b.kernel.steps, func(s string) bool { return strings.Contains(s, text) })
	}
	order := []int{at("-A TEST-TOP-01"), at("settle"), at("add 10.96.0.1"), at("late")}
	if order[0] < 0 || !slices.IsSorted(order) || len(slices.Compact(slices.Clone(order))) != len(order) {
		t.Errorf("rules, settle, meaning and what is late come in steps %v of %q", order, b.kernel.steps)
	}
	if want := []string{"s0", "s1", "s2"}; !slices.Equal(b.settled, want) {
		t.Errorf("settled %v, want %v", b.settled, want)
	}
	again := New(testLayout(), b.kernel, 0)
	b.program = again
	if r := b.sync(b.wish(want)); r.Writes != 0 {
		t.Errorf("a restart writes %d", r.Writes)
	}
}

// A ServicePort whose source is not all that it should be works as far as it
// goes, is reported, and is asked for again later, not at once.
func TestPartialSources(t *testing.T) {
	b := newBench(t)
	want := services(t, dataplane.Empty(), 2)
	cause := errors.New("no file is left")
	b.partial["s1"], b.ports["s1"] = cause, 81
	r := b.sync(b.wish(want))
	if len(r.Failed) != 1 || !errors.Is(r.Failed[0].Err, cause) || r.Again != b.now.Add(RetryAfter) || b.led("s1") != 81 {
		t.Errorf("the report is %+v, led to %d", r, b.led("s1"))
	}
	b.partial["s1"], b.ports["s1"] = nil, 82
	if r := b.sync(b.wish(want)); len(r.Failed) != 1 || b.led("s1") != 81 {
		t.Errorf("at once: the report is %+v, led to %d", r, b.led("s1"))
	}
	b.now = b.now.Add(RetryAfter)
	if r := b.sync(b.wish(want)); len(r.Failed) != 0 || b.led("s1") != 82 {
		t.Errorf("later: the report is %+v, led to %d", r, b.led("s1"))
	}
	if want := []string{"s1"}; !slices.Equal(b.settled, want) {
		t.Errorf("settled %v, want %v", b.settled, want)
	}
}

// A change that is refused is found by halving; what it replaces stays, all
// others take place, and Settle hears of all.
func TestRefusedChangeIsIsolated(t *testing.T) {
	b := newBench(t)
	want := services(t, dataplane.Empty(), 20)
	b.sync(b.wish(want))
	for i := range 20 {
		b.ports[fmt.Sprint("s", i)] = 90
	}
	b.ports["s13"] = hated
	w := b.wish(want)
	w.Anew = true
	r := b.sync(w)
	if got := failed(r); !slices.Equal(got, []string{"s13"}) {
		t.Fatalf("failed %v", got)
	}
	for i := range 20 {
		port := uint16(90)
		if i == 13 {
			port = 80
		}
		if n := fmt.Sprint("s", i); b.led(n) != port {
			t.Errorf("%s is led to %d, want %d", n, b.led(n), port)
		}
	}
	slices.Sort(b.settled)
	if n := len(b.settled); n != 20 || len(slices.Compact(b.settled)) != n {
		t.Errorf("settle hears of %q, want each of 20 once", b.settled)
	}
	b.ports["s13"] = 91
	b.now = b.now.Add(RetryAfter)
	if r := b.sync(b.wish(want)); len(r.Failed) != 0 || b.led("s13") != 91 {
		t.Errorf("later: failed %v, led to %d", failed(r), b.led("s13"))
	}
}

// kubernetes#3760: a collision of hashes is refused, not joined.
func TestCollisionIsRefused(t *testing.T) {
	b := newBench(t)
	b.chains["s1"] = "" // its own
	want := services(t, dataplane.Empty(), 2)
	b.sync(b.wish(want))
	next := services(t, want, 3)
	edit := next.Edit()
	twin, _ := next.ServicePort(name("s2"))
	other := *twin
	other.Name = name("s") // with the suffix its chain is that of s1
	edit.Delete(twin.Name)
	edit.Put(&other)
	b.chains["s"] = "1"
	next, err := edit.Build()
	if err != nil {
		t.Fatal(err)
	}
	r := b.sync(b.wish(next))
	if len(r.Failed) != 1 || r.Failed[0].Name.Name != "s" || !strings.Contains(r.Failed[0].Err.Error(), "belongs to default/s1/TCP") {
		t.Errorf("failed %v, want s because of s1", r.Failed)
	}
	if found, err := b.program.Audit(t.Context(), b.wish(want)); err != nil || len(found) > 0 {
		t.Errorf("a refused Service leaves %v, %v", found, err)
	}
}

// After an error nothing is taken on trust, and nothing that was removed is
// forgotten.
func TestErrorsMakeItReadAgain(t *testing.T) {
	b := newBench(t)
	want := services(t, dataplane.Empty(), 3)
	b.sync(b.wish(want))
	b.kernel.err = errors.New("made to fail")
	fewer := services(t, dataplane.Empty(), 2)
	if _, err := b.program.Sync(t.Context(), b.wish(fewer)); !errors.Is(err, b.kernel.err) || !b.program.IsFresh() {
		t.Fatalf("error %v, fresh: %t", err, b.program.IsFresh())
	}
	b.kernel.err = nil
	r := b.sync(b.wish(fewer))
	if len(r.Removed) != 1 || !r.Full || b.led("s2") != 0 {
		t.Errorf("the next Sync reports %+v", r)
	}
}

// What others do to our chains is repaired and told; what they do elsewhere is
// theirs.
func TestRepair(t *testing.T) {
	b := newBench(t)
	want := services(t, dataplane.Empty(), 2)
	b.sync(b.wish(want))
	damage := netfilter.Transaction{Table: netfilter.NAT, Chains: []netfilter.Chain{
		{Name: "TEST-s1"}, {Name: "TEST-STALE", Rules: []netfilter.Rule{{Comment: "x"}}}, {Name: "FOREIGN"},
	}}
	if err := b.kernel.Restore(t.Context(), damage); err != nil {
		t.Fatal(err)
	}
	w := b.wish(want)
	w.Distrust = true
	r := b.sync(w)
	if len(r.Repaired) != 2 || r.Repaired[1].ServicePort != name("s1") || b.led("s1") != 80 {
		t.Errorf("repaired %v, led to %d", r.Repaired, b.led("s1"))
	}
	chains, err := netfilter.ReadTable(t.Context(), b.kernel, netfilter.NAT, nil)
	if _, foreign := chains["FOREIGN"]; err != nil || !foreign || len(chains["TEST-STALE"].Rules) > 0 {
		t.Errorf("a foreign chain or a stale one of ours is not as it should be: %v %v", chains, err)
	}
}
