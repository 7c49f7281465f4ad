package servicecache

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/portway/portway/modules/dataplane"
)

// many returns a cache with n Services of perService endpoints each.
func many(t testing.TB, n, perService int) *Cache {
	t.Helper()
	c := newCache(t, testConfig())
	for i := range n {
		set(t, c, manyService(i), manySlice(i, perService, 0))
	}
	build(c)
	return c
}

func manyService(i int) *corev1.Service {
	return testService(fmt.Sprintf("s%d", i), clusterIPs(fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250)), nodePort(int32(20000+i)))
}

func manySlice(i, endpoints, version int) *discoveryv1.EndpointSlice {
	eps := make([]discoveryv1.Endpoint, endpoints)
	for j := range eps {
		eps[j] = ep(fmt.Sprintf("10.%d.%d.%d", 100+(version+j)%100, i/250, 1+i%250), "n2", "rs-")
	}
	return testSlice(fmt.Sprintf("s%d", i), fmt.Sprintf("s%d-1", i), eps...)
}

func changes(s, old *dataplane.Snapshot) (names []string) {
	for ch := range s.ChangesSince(old) {
		names = append(names, ch.Name.String())
	}
	slices.Sort(names)
	return names
}

// A change touches the ServicePorts that it concerns; all others keep their
// pointers, and an equal Pool keeps its own.
func TestOnlyWhatChanged(t *testing.T) {
	c := many(t, 50, 3)
	s := build(c)
	step := func(what string, want ...string) {
		t.Helper()
		next := build(c)
		if got := changes(next, s); !equal(got, want) {
			t.Errorf("%s: changed %v, want %v", what, got, want)
		}
		s = next
	}
	set(t, c, manySlice(7, 3, 1))
	step("other endpoints", "ns/s7/TCP")
	set(t, c, manyService(7), manySlice(7, 3, 1), testNode(), testLocal())
	step("all as it was")
	set(t, c, manySlice(7, 3, 2), manySlice(7, 3, 1))
	step("there and back")
	set(t, c, testLocal("10.0.0.7/24"))
	step("an address of the node")
	set(t, c, testNode(func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "z" }))
	step("the node's zone, without hints")
	old, _ := s.ServicePort(dataplane.ServicePortName{Namespace: "ns", Name: "s9", Protocol: dataplane.TCP})
	svc := manyService(9)
	svc.Spec.ExternalIPs = []string{extIP}
	set(t, c, svc)
	step("an externalIP", "ns/s9/TCP")
	now, _ := s.ServicePort(old.Name)
	if len(now.Pools) != 1 || now.Pools[0] != old.Pools[0] || now.Frontends[0] != old.Frontends[0] {
		t.Error("an externalIP changes the pool or the ClusterIP's frontend")
	}
	rival := manyService(10)
	rival.Spec.ExternalIPs, rival.CreationTimestamp.Time = []string{extIP}, time.Unix(1, 0)
	set(t, c, rival)
	step("an older rival", "ns/s10/TCP", "ns/s9/TCP")
	c.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: "s10"})
	step("it goes", "ns/s10/TCP", "ns/s9/TCP")
}

// What a change costs does not grow with the number of other Services: the
// snapshot's maps copy a 256th of themselves, all the rest is constant. The
// shortest of many times is the one that nobody disturbed.
// Proves kubernetes#73324.
func TestCostOfOneChange(t *testing.T) {
	cost := func(n int) (allocations float64, shortest time.Duration) {
		c := many(t, n, 2)
		version := 0
		shortest = time.Hour
		runtime.GC() // while it marks, every pointer costs more
		allocations = testing.AllocsPerRun(1000, func() {
			version++
			slice := manySlice(n/2, 2, version)
			start := time.Now()
			c.SetEndpointSlice(slice)
			build(c)
			shortest = min(shortest, time.Since(start))
		})
		return allocations, shortest
	}
	few, short := cost(50)
	lots, long := cost(10000)
	if lots > 2*few {
		t.Errorf("%.0f allocations among 50 Services, %.0f among 10000", few, lots)
	}
	if long > 3*short {
		t.Errorf("%s among 50 Services, %s among 10000", short, long)
	}
	t.Logf("%s among 50 Services, %s among 10000", short, long)
}

// kubernetes#8891: what is gone leaves nothing behind.
func TestNothingStays(t *testing.T) {
	c := newCache(t, testConfig())
	for round := range 3 {
		for i := range 20 {
			s := manyService(i)
			s.Spec.ExternalIPs = []string{extIP}
			if i%3 == round {
				s.Labels = map[string]string{proxyNameLabel: "x"}
			}
			set(t, c, s, manySlice(i, 3, round))
		}
		build(c)
		for i := range 20 {
			c.DeleteEndpointSlice("ns", fmt.Sprintf("s%d-1", i))
			c.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: fmt.Sprintf("s%d", i)})
		}
		s := build(c)
		left := len(c.entries) + len(c.slices) + len(c.claims) + len(c.serviceIPs) + len(c.ignoredIPs) + len(c.dirty) + len(c.dirtyIPs)
		if left != 0 || s.Len() != 0 {
			t.Errorf("round %d leaves %d things in the cache and %d ServicePorts", round, left, s.Len())
		}
	}
}
