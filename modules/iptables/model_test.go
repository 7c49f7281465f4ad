package iptables

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
	"github.com/portway/portway/modules/netfilter/program"
)

// held is what a kernel holds of ours, and what it held before the Services
// came.
type held struct {
	chains, empty map[program.ChainID][]netfilter.Rule
	sets          []netfilter.Set
	emptySets     map[string][]netfilter.SetEntry
}

// heldOf is what a plane makes of some Services in a kernel in memory.
func heldOf(tb testing.TB, f dataplane.Family, sps ...*dataplane.ServicePort) held {
	tb.Helper()
	k := netfiltertest.New(f)
	p := NewPlane(f, k, testNode().Holds)
	mustSync(tb, p, snapshotOf(tb), time.Time{}, false)
	h := held{empty: chainsOf(tb, k), emptySets: make(map[string][]netfilter.SetEntry)}
	for _, s := range setsOf(tb, k) {
		h.emptySets[s.Name] = s.Entries
	}
	mustSync(tb, p, snapshotOf(tb, sps...), time.Time{}, false)
	h.chains, h.sets = chainsOf(tb, k), setsOf(tb, k)
	return h
}

func setsOf(tb testing.TB, k netfilter.Kernel) []netfilter.Set {
	tb.Helper()
	sets, err := k.Sets(tb.Context(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	return sets
}

func chainsOf(tb testing.TB, k netfilter.Kernel) map[program.ChainID][]netfilter.Rule {
	tb.Helper()
	all := make(map[program.ChainID][]netfilter.Rule)
	for _, t := range netfilter.Tables() {
		err := k.Save(tb.Context(), []netfilter.Table{t}, func(_ netfilter.Table, c netfilter.Chain) error {
			if c.Policy == "" {
				all[program.ChainID{Table: t, Name: c.Name}] = slices.Clone(c.Rules)
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	return all
}

// size is how much there is in the kernel.
type size struct{ rules, chains, entries, sets int }

func (h held) size() size {
	s := size{chains: len(h.chains), sets: len(h.sets)}
	for _, rules := range h.chains {
		s.rules += len(rules)
	}
	for _, set := range h.sets {
		s.entries += len(set.Entries)
	}
	return s
}

func (s size) minus(o size) size {
	return size{s.rules - o.rules, s.chains - o.chains, s.entries - o.entries, s.sets - o.sets}
}

func numberedEndpoints(net string, n int) []dataplane.Endpoint {
	var all []string
	for i := range n {
		all = append(all, strings.NewReplacer("a", itoa(i/250), "b", itoa(i%250+1)).Replace(net))
	}
	return endpoints(all...)
}

func itoa(i int) string { return strconv.Itoa(i) }

// TestCost holds what one Service costs. It is a table so that nobody makes
// the mode dearer by chance.
// Proves kubernetes#139513.
func TestCost(t *testing.T) {
	remote := func(n int) []dataplane.Endpoint { return numberedEndpoints("10.9.a.b:80", n) }
	local := func(n int) []dataplane.Endpoint { return numberedEndpoints("10.244.1.b:80", n) }
	sticky := func(sp *dataplane.ServicePort) *dataplane.ServicePort {
		sp.Affinity = 3 * 3600e9
		return sp
	}
	for _, c := range []struct {
		name string
		sp   *dataplane.ServicePort
		want size
	}{
		{"ClusterIP without endpoints", clusterIP("s", "10.96.0.1:80", nil), size{2, 1, 2, 0}},
		{"ClusterIP, 1 endpoint", clusterIP("s", "10.96.0.1:80", remote(1)), size{3, 2, 2, 0}},
		{"ClusterIP, 5 endpoints", clusterIP("s", "10.96.0.1:80", remote(5)), size{7, 2, 2, 0}},
		{"ClusterIP, 5 local endpoints", clusterIP("s", "10.96.0.1:80", local(5)), size{7, 2, 7, 0}},
		{"ClusterIP, 32 endpoints", clusterIP("s", "10.96.0.1:80", remote(32)), size{34, 2, 2, 0}},
		{"ClusterIP, 1000 endpoints", clusterIP("s", "10.96.0.1:80", remote(1000)), size{1034, 34, 2, 0}},
		{"ClusterIP, 5 endpoints, affinity", sticky(clusterIP("s", "10.96.0.1:80", remote(5))), size{22, 7, 2, 5}},
		{"NodePort and LB IP, 5 endpoints", loadBalancer(t, remote(5), nil, false), size{12, 4, 2, 0}},
		{"the same, traffic policy Local, 2 of 5 here", loadBalancer(t, remote(3), local(2), false), size{18, 5, 4, 0}},
		{"the same, with a source range", loadBalancer(t, remote(3), local(2), true), size{26, 8, 5, 0}},
	} {
		empty := heldOf(t, dataplane.IPv4).size()
		if got := heldOf(t, dataplane.IPv4, c.sp).size().minus(empty); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A change writes the chain of the Service that changed, whatever the number of
// Services.
func TestChangeTouchesOnlyItsOwn(t *testing.T) {
	for _, n := range []int{10, 5000} {
		sps := many(n)
		k := &recorder{Kernel: netfiltertest.New(dataplane.IPv4)}
		p := fakePlane(k)
		want := snapshotOf(t, sps...)
		mustSync(t, p, want, time.Time{}, false)
		k.writes = nil
		edit := want.Edit()
		edit.Put(clusterIP(sps[3].Name.Name, "10.96.0.4:80", endpoints("10.244.9.9:8080")))
		mustSync(t, p, built(t, edit), time.Time{}, false)
		written := strings.Join(k.writes, "")
		if chain := ":" + poolChain(sps[3].Name, dataplane.Cluster) + " "; strings.Count(written, "\n:") != 1 || !strings.Contains(written, chain) {
			t.Errorf("of %d Services one changes, and this is written, not only its chain %s:\n%s", n, chain, written)
		}
	}
}

// The order of arrival plays no part: any walk ends in the same kernel state.
func TestModelForgetsItsPast(t *testing.T) {
	sps := many(50)
	k := netfiltertest.New(dataplane.IPv4)
	p := fakePlane(k)
	walk := snapshotOf(t, many(300)...)
	mustSync(t, p, walk, time.Time{}, false)
	edit := walk.Edit()
	for _, sp := range many(300)[50:] {
		edit.Delete(sp.Name)
	}
	walk = built(t, edit)
	mustSync(t, p, walk, time.Time{}, false)
	for _, sp := range slices.Backward(sps) {
		edit = walk.Edit()
		edit.Put(sp)
		walk = built(t, edit)
		mustSync(t, p, walk, time.Time{}, false)
	}
	direct := heldOf(t, dataplane.IPv4, sps...)
	walked := held{chains: chainsOf(t, k), sets: setsOf(t, k)}
	if is, want := walked.text(false), direct.text(false); is != want {
		t.Errorf("a walk ends in\n%s\nand not in\n%s", is, want)
	}
}

// TestCostOfChange holds what a change writes, in rules, chains and entries,
// with 200 other Services around.
// Proves kubernetes#139513.
func TestCostOfChange(t *testing.T) {
	with := func(es ...string) *dataplane.ServicePort { return clusterIP("web", "10.96.7.1:80", endpoints(es...)) }
	sticky := func(es ...string) *dataplane.ServicePort {
		sp := with(es...)
		sp.Affinity = time.Hour
		return sp
	}
	for _, c := range []struct {
		name     string
		old, new *dataplane.ServicePort
		want     int
	}{
		// The pool's chain: two endpoints.
		{"an endpoint elsewhere", with("10.9.0.1:80", "10.9.0.2:80"), with("10.9.0.1:80", "10.9.0.3:80"), 2},
		// The same, and two entries for the hairpin.
		{"an endpoint on this node", with("10.9.0.1:80", "10.244.1.1:80"), with("10.9.0.1:80", "10.244.1.2:80"), 4},
		// Two sets asked and two endpoints; one endpoint's chain of two rules and its
		// set made, another one's removed.
		{"an endpoint with affinity", sticky("10.9.0.1:80", "10.9.0.2:80"), sticky("10.9.0.1:80", "10.9.0.3:80"), 4 + 3 + 2},
		// The bucket's rule, the pool's chain removed, the sets of rejects and of
		// who is masqueraded.
		{"the last endpoint leaves", with("10.9.0.1:80"), clusterIP("web", "10.96.7.1:80", nil), 1 + 1 + 2},
		{"nothing that matters", with("10.9.0.1:80"), with("10.9.0.1:80"), 0},
	} {
		p := fakePlane(netfiltertest.New(dataplane.IPv4))
		others := many(200)[1:] // which leaves the bucket to the one that changes
		want := snapshotOf(t, append(others, c.old)...)
		mustSync(t, p, want, time.Time{}, false)
		edit := want.Edit()
		edit.Put(c.new)
		if r := mustSync(t, p, built(t, edit), time.Time{}, false); r.Writes != c.want {
			t.Errorf("%s: %d writes, want %d", c.name, r.Writes, c.want)
		}
	}
}
