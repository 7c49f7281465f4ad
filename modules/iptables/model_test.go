package iptables

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
)

func modelOf(tb testing.TB, f dataplane.Family, sps ...*dataplane.ServicePort) *model {
	tb.Helper()
	m := newModel(testNode(), f, true)
	for _, sp := range sps {
		if err := m.put(sp); err != nil {
			tb.Fatal(err)
		}
	}
	return m
}

// size is how much a model puts into the kernel.
type size struct{ rules, chains, entries, sets int }

func (m *model) size() size {
	var s size
	m.allDirty()
	for id := range m.digests(newDigester()) {
		s.chains++
		s.rules += len(m.chainRules(id))
	}
	s.entries, s.sets = len(m.entries), len(m.sets)
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
		{"ClusterIP, 1 endpoint", clusterIP("s", "10.96.0.1:80", remote(1)), size{4, 2, 1, 0}},
		{"ClusterIP, 5 endpoints", clusterIP("s", "10.96.0.1:80", remote(5)), size{8, 2, 1, 0}},
		{"ClusterIP, 5 local endpoints", clusterIP("s", "10.96.0.1:80", local(5)), size{8, 2, 6, 0}},
		{"ClusterIP, 32 endpoints", clusterIP("s", "10.96.0.1:80", remote(32)), size{35, 2, 1, 0}},
		{"ClusterIP, 1000 endpoints", clusterIP("s", "10.96.0.1:80", remote(1000)), size{1035, 34, 1, 0}},
		{"ClusterIP, 5 endpoints, affinity", sticky(clusterIP("s", "10.96.0.1:80", remote(5))), size{23, 7, 1, 5}},
		{"NodePort and LB IP, 5 endpoints", loadBalancer(t, remote(5), nil, false), size{13, 4, 1, 0}},
		{"the same, traffic policy Local, 2 of 5 here", loadBalancer(t, remote(3), local(2), false), size{19, 5, 3, 0}},
		{"the same, with a source range", loadBalancer(t, remote(3), local(2), true), size{27, 8, 4, 0}},
	} {
		empty := modelOf(t, dataplane.IPv4).size()
		if got := modelOf(t, dataplane.IPv4, c.sp).size().minus(empty); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A change touches the chains of the Service that changed and its bucket,
// whatever the number of Services.
func TestChangeTouchesOnlyItsOwn(t *testing.T) {
	for _, n := range []int{10, 5000} {
		sps := many(n)
		m := modelOf(t, dataplane.IPv4, sps...)
		m.dirty = newDirt()
		changed := clusterIP(sps[3].Name.Name, "10.96.0.4:80", endpoints("10.244.9.9:8080"))
		if err := m.put(changed); err != nil {
			t.Fatal(err)
		}
		own := slices.Collect(maps.Keys(m.dirty.own))
		shared := slices.Sorted(func(yield func(string) bool) {
			for id := range m.dirty.shared {
				if !yield(id.name) {
					return
				}
			}
		})
		if len(own) != 1 || own[0].name != poolChain(changed.Name, dataplane.Cluster) {
			t.Errorf("of %d Services one changes: own chains %v", n, own)
		}
		if len(shared) > 2 {
			t.Errorf("of %d Services one changes: shared chains %v", n, shared)
		}
	}
}

// The order of arrival plays no part: any walk ends in the same model.
func TestModelForgetsItsPast(t *testing.T) {
	sps := many(50)
	direct := modelOf(t, dataplane.IPv4, sps...)
	walked := modelOf(t, dataplane.IPv4, many(300)...)
	for _, sp := range many(300)[50:] {
		walked.remove(sp.Name)
	}
	for _, sp := range slices.Backward(sps) {
		if err := walked.put(sp); err != nil {
			t.Fatal(err)
		}
	}
	d := newDigester()
	direct.allDirty()
	walked.allDirty()
	if !maps.Equal(direct.digests(d), walked.digests(d)) {
		t.Error("the chains differ")
	}
	if !maps.Equal(direct.entries, walked.entries) {
		t.Error("the entries of sets differ")
	}
}

// kubernetes#3760: a collision of hashes is refused, not joined.
func TestCollisionIsRefused(t *testing.T) {
	sp := clusterIP("b", "10.96.0.2:80", endpoints("10.9.0.2:80"))
	m := modelOf(t, dataplane.IPv4, clusterIP("a", "10.96.0.1:80", endpoints("10.9.0.1:80")))
	m.owners[chainID{"nat", poolChain(sp.Name, dataplane.Cluster)}] = tcp("a")
	before := m.size()
	err := m.put(sp)
	if err == nil || !strings.Contains(err.Error(), "default/a/TCP") {
		t.Errorf("put returns %v, want an error that names the owner", err)
	}
	if after := m.size(); after != before {
		t.Errorf("a refused Service leaves %+v", after.minus(before))
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
		// The pool's chain: masquerade and two endpoints.
		{"an endpoint elsewhere", with("10.9.0.1:80", "10.9.0.2:80"), with("10.9.0.1:80", "10.9.0.3:80"), 3},
		// The same, and two entries for the hairpin.
		{"an endpoint on this node", with("10.9.0.1:80", "10.244.1.1:80"), with("10.9.0.1:80", "10.244.1.2:80"), 5},
		// Masquerade, two sets asked and two endpoints; one endpoint's chain of
		// two rules and its set made, another one's removed.
		{"an endpoint with affinity", sticky("10.9.0.1:80", "10.9.0.2:80"), sticky("10.9.0.1:80", "10.9.0.3:80"), 5 + 3 + 2},
		// The bucket's rule, the pool's chain removed, the set of rejects.
		{"the last endpoint leaves", with("10.9.0.1:80"), clusterIP("web", "10.96.7.1:80", nil), 1 + 1 + 1},
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
