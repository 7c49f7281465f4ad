package servicecache

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
)

// spell writes reasons as a person would read them.
func spell(r dataplane.Reasons) string {
	lines := []string{r.Policy, r.Choice}
	for _, e := range r.Endpoints {
		in := "out"
		if e.In {
			in = "in"
		}
		lines = append(lines, fmt.Sprintf("%s %s of %s: %s", in, e.Addr, e.Slice, e.Why))
	}
	return strings.Join(append(lines, r.Notes...), "\n")
}

func TestReasons(t *testing.T) {
	const clusterIP, loadBalancer = "10.96.0.10:80", lbIP + ":80"
	for name, tt := range map[string]struct {
		service *corev1.Service
		slices  []any
		flow    string
		want    string
	}{
		"ready": {
			testService("s"), slicesOf(testSlice("s", "1", ep(e1, "n1", "rs-"), ep(e2, "n2", "---"), ep(e3, "n3", "-st"))),
			"pod " + clusterIP,
			`internalTrafficPolicy Cluster
				ready endpoints
				in 10.244.1.1:8080 of 1: it is one of the ready endpoints
				out 10.244.2.2:8080 of 1: it is not ready
				out 10.244.3.3:8080 of 1: it terminates, and is the second choice`,
		},
		"the second choice (KEP-1669)": {
			testService("s"), slicesOf(testSlice("s", "1", ep(e1, "n1", "-st"), ep(e2, "n2", "--t"), ep(e3, "n3", "-s-"))),
			"pod " + clusterIP,
			`internalTrafficPolicy Cluster
				terminating endpoints that still serve (none is ready)
				in 10.244.1.1:8080 of 1: it is one of the terminating endpoints that still serve (none is ready)
				out 10.244.2.2:8080 of 1: it does not serve
				out 10.244.3.3:8080 of 1: it is not ready`,
		},
		"internal, Local, none here": {
			testService("s", internalLocal), slicesOf(testSlice("s", "1", ep(e2, "n2", "rs-"))),
			"pod " + clusterIP,
			`internalTrafficPolicy Local
				none is left of the ready endpoints on this node
				out 10.244.2.2:8080 of 1: it is not on this node`,
		},
		"external, Local, from outside": {
			testService("s", exposed, externalLocal), slicesOf(testSlice("s", "1", ep(e1, "n1", "rs-"), ep(e2, "n2", "rs-"))),
			"out " + loadBalancer,
			`externalTrafficPolicy Local
				ready endpoints on this node
				in 10.244.1.1:8080 of 1: it is one of the ready endpoints on this node
				out 10.244.2.2:8080 of 1: it is not on this node`,
		},
		"external, Local, from within": {
			testService("s", exposed, externalLocal), slicesOf(testSlice("s", "1", ep(e2, "n2", "rs-"))),
			"pod " + loadBalancer,
			`externalTrafficPolicy Local, which does not limit traffic from within the cluster
				ready endpoints
				in 10.244.2.2:8080 of 1: it is one of the ready endpoints`,
		},
		"hints": {
			testService("s"), slicesOf(testSlice("s", "1", ep(e1, "n1", "rs-", "zone:a"), ep(e2, "n2", "rs-", "zone:b"))),
			"pod " + clusterIP,
			`internalTrafficPolicy Cluster
				ready endpoints that hints give to zone a
				in 10.244.1.1:8080 of 1: it is one of the ready endpoints that hints give to zone a
				out 10.244.2.2:8080 of 1: its hints give it to other zones`,
		},
		"hints for nodes": {
			testService("s"), slicesOf(testSlice("s", "1", ep(e1, "n1", "rs-", "n1"), ep(e2, "n2", "rs-", "n2"))),
			"pod " + clusterIP,
			`internalTrafficPolicy Cluster
				ready endpoints that hints give to this node
				in 10.244.1.1:8080 of 1: it is one of the ready endpoints that hints give to this node
				out 10.244.2.2:8080 of 1: its hints give it to other nodes`,
		},
		"in two slices": {
			testService("s"), slicesOf(testSlice("s", "1", ep(e1, "n1", "---")), testSlice("s", "2", ep(e1, "n1", "rs-"))),
			"pod " + clusterIP,
			`internalTrafficPolicy Cluster
				ready endpoints
				in 10.244.1.1:8080 of 2: it is one of the ready endpoints
				out 10.244.1.1:8080 of 1: EndpointSlice 2 lists it too, and counts`,
		},
		"another port, and an address that is refused": {
			testService("s"), slicesOf(
				changed(testSlice("s", "1", ep(e1, "n1", "rs-")), anyPort(discoveryv1.EndpointPort{Name: new("https"), Port: new(int32(8443))})),
				testSlice("s", "2", ep("127.0.0.1", "n1", "rs-")), testSlice("s", "6", ep("fd00:244::1", "n1", "rs-"))),
			"pod " + clusterIP,
			`internalTrafficPolicy Cluster
				none is left of the ready endpoints
				EndpointSlice 1 has no port "" of TCP: its 1 endpoints do not count
				EndpointSlice ns/2: endpoints.addresses: loopback address 127.0.0.1 is not used`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, testConfig(), tt.service)
			set(t, c, tt.slices...)
			s := build(c)
			r, ok := c.Explain(s.Decide(flow(t, tt.flow)))
			if want := strings.Join(lines(tt.want), "\n"); !ok || spell(r) != want {
				t.Errorf("%t\n%s\nwant\n%s", ok, spell(r), want)
			}
		})
	}
}

// Who lost an address is told.
func TestReasonsNameConflicts(t *testing.T) {
	c := newCache(t, testConfig(), testService("a", exposed), testService("b", exposed, clusterIPs("10.96.0.11"), createdAt(2000)))
	s := build(c)
	r, ok := c.Explain(s.Decide(flow(t, "pod 10.96.0.11:80")))
	if want := "LoadBalancerIP 198.51.100.1:80/TCP is not served"; !ok || !strings.Contains(spell(r), want) {
		t.Errorf("%t, no %q in\n%s", ok, want, spell(r))
	}
}

// A verdict of another time is not explained by what is now.
func TestReasonsForAnOldVerdict(t *testing.T) {
	c := newCache(t, testConfig(), testService("s"), testSlice("s", "1", ep(e1, "n1", "rs-")))
	v := build(c).Decide(flow(t, "pod 10.96.0.10:80"))
	set(t, c, testSlice("s", "1", ep(e2, "n2", "rs-")))
	build(c)
	if r, ok := c.Explain(v); ok {
		t.Errorf("explained by %+v", r)
	}
	if r, ok := c.Explain(dataplane.Verdict{}); ok {
		t.Errorf("a flow to nobody: %+v", r)
	}
	c.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: "s"})
	build(c)
	if r, ok := c.Explain(v); ok {
		t.Errorf("a deleted Service is explained by %+v", r)
	}
}

// The endpoints that are said to be in are those of the pool, whatever the
// objects are.
func TestReasonsAgreeWithTheVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := New(testConfig())
		if err != nil {
			t.Fatal(err)
		}
		w := &world{services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}}
		for range rapid.IntRange(1, 25).Draw(t, "changes") {
			w.change(t, c)
		}
		for sp := range build(c).ServicePorts() {
			for _, fe := range sp.Frontends {
				for _, o := range dataplane.Origins() {
					checkReasons(t, c, dataplane.Verdict{ServicePort: sp, Frontend: fe, Origin: o})
				}
			}
		}
	})
}

func checkReasons(t *rapid.T, c *Cache, v dataplane.Verdict) {
	r, ok := c.Explain(v)
	if !ok || r.Policy == "" || r.Choice == "" {
		t.Fatalf("%s %s: %t %+v", v.ServicePort.Name, v.Frontend.Kind, ok, r)
	}
	var in, want []netip.AddrPort
	for _, e := range r.Endpoints {
		if e.In {
			in = append(in, e.Addr)
		}
		if e.Why == "" {
			t.Fatalf("%s: nothing is said of %s", v.ServicePort.Name, e.Addr)
		}
	}
	route := v.Frontend.Routes[v.Origin]
	if route.Pool != nil {
		for _, e := range route.Pool.Endpoints {
			want = append(want, e.Addr)
		}
	}
	if !slices.Equal(in, want) && route.Action == dataplane.Forward || route.Action != dataplane.Forward && len(in) > 0 {
		t.Fatalf("%s %s from %s: %s, but %v are said to be in\n%s", v.ServicePort.Name, v.Frontend.Kind, v.Origin, route.Action, in, spell(r))
	}
}

// Others may ask while the Source runs, and do not wait for one that does not.
func TestSourceExplains(t *testing.T) {
	x := newSubject(t, testConfig())
	x.set(testService("s"), testSlice("s", "1", ep(e1, "n1", "rs-")))
	x.SetLocal(testLocal())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := x.Explain(ctx, dataplane.Verdict{}); !errors.Is(err, context.Canceled) {
		t.Errorf("before Run: %v", err)
	}
	x.start()
	v := x.eventually(toE1).Decide(flow(t, "pod 10.96.0.10:80"))
	r, ok, err := x.Explain(t.Context(), v)
	if err != nil || !ok || len(r.Endpoints) != 1 || !r.Endpoints[0].In {
		t.Errorf("%v %t %+v", err, ok, r)
	}
}
