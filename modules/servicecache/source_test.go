package servicecache

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/servicecache/apisim"
)

// patience is how long a test waits for what must come; nothing waits for it
// to pass.
const patience = time.Minute

// subject is a Source that runs against a simulated API server.
type subject struct {
	*Source
	t         *testing.T
	sim       *apisim.Server
	snapshots chan *dataplane.Snapshot
	problems  chan Problem
	nodes     chan NodeStatus
	logged    chan slog.Record
	last      *dataplane.Snapshot
}

func newSubject(t *testing.T, config Config) *subject {
	t.Helper()
	x := &subject{
		t: t, sim: apisim.New(), snapshots: make(chan *dataplane.Snapshot, 10000),
		problems: make(chan Problem, 10000), nodes: make(chan NodeStatus, 1000), logged: make(chan slog.Record, 100000),
	}
	t.Cleanup(x.sim.Close)
	client, err := x.sim.Client()
	if err != nil {
		t.Fatal(err)
	}
	x.Source, err = NewSource(client, config, Listener{
		Publish: func(s *dataplane.Snapshot) { x.snapshots <- s },
		Report:  func(p Problem) { x.problems <- p },
		Node:    func(n NodeStatus) { x.nodes <- n },
	}, slog.New(recorder(x.logged)))
	if err != nil {
		t.Fatal(err)
	}
	x.backoff = &wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 5, Cap: 30 * time.Millisecond}
	x.set(testNode(), testCIDR("10.96.0.0/16"))
	return x
}

func (x *subject) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := x.Run(ctx); !errors.Is(err, context.Canceled) {
			x.t.Errorf("Run: %v", err)
		}
	})
	x.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (x *subject) set(os ...runtime.Object) {
	x.t.Helper()
	if err := x.sim.Set(os...); err != nil {
		x.t.Fatal(err)
	}
}

func (x *subject) delete(os ...runtime.Object) {
	x.t.Helper()
	if err := x.sim.Delete(os...); err != nil {
		x.t.Fatal(err)
	}
}

// await waits for something that satisfies a condition.
func await[T any](t *testing.T, from <-chan T, what string, ok func(T) bool) T {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case v := <-from:
			if ok(v) {
				return v
			}
		case <-deadline:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// eventually waits for a snapshot in which the flows go where the lines say.
func (x *subject) eventually(lines ...string) *dataplane.Snapshot {
	x.t.Helper()
	for {
		judge := &failures{TB: x.t}
		if x.last != nil {
			if expect(judge, x.last, lines...); judge.n == 0 {
				return x.last
			}
		}
		select {
		case x.last = <-x.snapshots:
		case <-time.After(patience):
			if x.last != nil {
				expect(x.t, x.last, lines...)
			}
			x.t.Fatalf("no such snapshot within %s", patience)
		}
	}
}

// failures counts errors instead of failing the test.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.n++ }

// recorder is a slog.Handler.
type recorder chan slog.Record

func (r recorder) Enabled(context.Context, slog.Level) bool        { return true }
func (r recorder) Handle(_ context.Context, rec slog.Record) error { r <- rec; return nil }
func (r recorder) WithAttrs([]slog.Attr) slog.Handler              { return r }
func (r recorder) WithGroup(string) slog.Handler                   { return r }

func attr(r slog.Record, key string) (v slog.Value) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			v = a.Value
		}
		return true
	})
	return v
}

const (
	toE1   = "pod 10.96.0.10:80 => 10.244.1.1:8080 masq=no"
	toE2   = "pod 10.96.0.10:80 => 10.244.2.2:8080 masq=no"
	toNone = "pod 10.96.0.10:80 => reject"
	gone   = "pod 10.96.0.10:80 => drop" // an unallocated address
)

func sliceTo(addr string) *discoveryv1.EndpointSlice {
	return testSlice("s", "s-1", ep(addr, "n1", "rs-"))
}

// Nothing is published before every first list is complete, whichever comes
// last; then everything is.
// Proves S9.1.
func TestNothingBeforeEveryFirstList(t *testing.T) {
	for _, streams := range []bool{true, false} {
		for _, late := range []string{"services", "endpointslices", "nodes", "servicecidrs", "local addresses"} {
			t.Run(map[bool]string{true: "streamed ", false: "listed "}[streams]+late, func(t *testing.T) {
				x := newSubject(t, testConfig())
				if !streams {
					x.sim.RefuseStreams()
				}
				x.set(testService("s"), sliceTo(e1))
				release := func() { x.SetLocal(testLocal()) }
				if late != "local addresses" {
					release()
					release = x.sim.Hold(late)
				}
				x.start()
				await(t, x.logged, "all but the last list", func(r slog.Record) bool {
					return r.Message == "first list is complete" && attr(r, "missing").Int64() == 1
				})
				if n := len(x.snapshots); n > 0 {
					t.Errorf("%d snapshots before the list of %s", n, late)
				}
				release()
				s := <-x.snapshots
				expect(t, s, toE1, "node 10.96.0.10:80 => 10.244.1.1:8080 masq=either", "pod 10.96.0.99:80 => drop")
				if s.Since().IsZero() || s.Node().PrimaryIP(dataplane.IPv4).String() != nodeIP4 {
					t.Errorf("accepted %s, node %+v", s.Since(), s.Node())
				}
			})
		}
	}
}

func ready(t *testing.T, config Config, objects ...runtime.Object) *subject {
	x := newSubject(t, config)
	x.set(objects...)
	x.SetLocal(testLocal())
	x.start()
	return x
}

func TestWatch(t *testing.T) {
	x := ready(t, testConfig(), testService("s"), sliceTo(e1))
	x.eventually(toE1)
	x.set(sliceTo(e2))
	x.eventually(toE2)
	x.delete(sliceTo(e2))
	x.eventually(toNone)
	x.set(sliceTo(e1))
	x.delete(testService("s"))
	x.eventually(gone)
	x.set(testService("s"))
	x.eventually(toE1)
	x.set(testCIDR("10.99.0.0/16"))
	x.eventually(toE1, "pod 10.96.0.99:80 => not ours", "pod 10.99.0.99:80 => drop")
}

// kubernetes#98577: a slice that gets the headless label leaves the watch as a
// DELETE; a Service of another proxy stays in it and is ignored.
// Proves S1.2.
func TestLabelsOverTheAPI(t *testing.T) {
	x := ready(t, testConfig(), testService("s"), sliceTo(e1))
	headless := sliceTo(e1)
	headless.Labels[corev1.IsHeadlessService] = ""
	orphan := sliceTo(e1)
	orphan.Labels = nil
	for range 2 {
		x.eventually(toE1)
		x.set(headless)
		x.eventually(toNone)
		x.set(sliceTo(e1))
		x.eventually(toE1)
		x.set(orphan)
		x.eventually(toNone)
		x.set(sliceTo(e1), testService("s", label(proxyNameLabel, "x")))
		x.eventually("pod 10.96.0.10:80 => not ours")
		x.set(testService("s"))
	}
}

// kubernetes#3216, #28674, #76338: watches that break, 410 Gone, errors, and
// objects that were deleted while nobody watched.
func TestAPIHiccups(t *testing.T) {
	for _, streams := range []bool{true, false} {
		t.Run(map[bool]string{true: "streamed", false: "listed"}[streams], func(t *testing.T) {
			x := newSubject(t, testConfig())
			if !streams {
				x.sim.RefuseStreams()
			}
			x.set(testService("s"), testService("t", clusterIPs("10.96.0.11")), sliceTo(e1))
			x.SetLocal(testLocal())
			x.start()
			const other = "pod 10.96.0.11:80 => "
			x.eventually(toE1, other+"reject")
			x.sim.DropWatches()
			x.set(sliceTo(e2))
			x.eventually(toE2, other+"reject")
			gap := func(changes func() error) {
				t.Helper()
				if err := x.sim.Gap(changes); err != nil {
					t.Fatal(err)
				}
			}
			gap(func() error { return x.sim.Delete(testService("t", clusterIPs("10.96.0.11")), sliceTo(e2)) })
			x.eventually(toNone, other+"drop")
			gap(func() error { return x.sim.Set(sliceTo(e1)) })
			x.eventually(toE1, other+"drop")
			gap(func() error { return x.sim.Delete(testCIDR("10.96.0.0/16")) })
			x.eventually(toE1, other+"not ours")
			x.sim.Fail(3)
			x.sim.DropWatches()
			x.set(sliceTo(e2))
			x.eventually(toE2)
		})
	}
}

// An API server without ServiceCIDRs does not hold up the rest.
func TestWithoutServiceCIDRs(t *testing.T) {
	x := newSubject(t, testConfig())
	x.sim.Absent("servicecidrs")
	x.set(testService("s"), sliceTo(e1))
	x.SetLocal(testLocal())
	x.start()
	x.eventually(toE1, "pod 10.96.0.99:80 => not ours")
	await(t, x.logged, "a warning", func(r slog.Record) bool { return r.Level == slog.LevelWarn })
}

// The Node may come after the agent, change, and go (kubernetes#111321).
func TestNodeOverTheAPI(t *testing.T) {
	x := newSubject(t, testConfig())
	x.delete(testNode())
	other := testNode(func(n *corev1.Node) { n.Name, n.Labels[corev1.LabelTopologyZone] = "n2", "b" })
	x.set(other, testService("s"), testSlice("s", "s-1", ep(e1, "n1", "rs-", "zone:a"), ep(e2, "n2", "rs-", "zone:b")))
	x.SetLocal(testLocal())
	x.start()
	x.eventually("pod 10.96.0.10:80 => " + both + " masq=no")
	state := func(want NodeStatus) {
		t.Helper()
		await(t, x.nodes, "node status", func(n NodeStatus) bool { return n == want })
	}
	state(NodeStatus{})
	x.set(testNode())
	x.eventually(toE1)
	state(NodeStatus{Known: true})
	x.set(testNode(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: toBeDeletedTaint}} }))
	state(NodeStatus{Known: true, ToBeDeleted: true})
	x.delete(testNode())
	state(NodeStatus{})
	x.set(sliceTo(e2))
	x.eventually(toE2)
	if got := x.last.Node().PrimaryIP(dataplane.IPv4).String(); got != nodeIP4 {
		t.Errorf("primary IP %s after the Node went", got)
	}
}

// A problem is told once, with the object that has it, whatever is listed or
// repeated.
func TestProblemsOverTheAPI(t *testing.T) {
	s := testService("s", sourceRanges("foo"), externalIPs("127.0.0.1"))
	s.UID = "u-1"
	bad := testSlice("s", "s-1", ep(e1, "n1", "rs-"), ep("127.0.0.1", "n1", "rs-"))
	x := ready(t, testConfig(), s, bad)
	x.eventually(toE1)
	if err := x.sim.Gap(func() error { return x.sim.Set(s, bad, testService("t", clusterIPs("10.96.0.11"))) }); err != nil {
		t.Fatal(err)
	}
	x.eventually(toE1, "pod 10.96.0.11:80 => reject")
	var told []string
	for len(x.problems) > 0 {
		p := <-x.problems
		told = append(told, p.Object.Kind+" "+string(p.Object.UID)+" "+string(p.Reason))
	}
	if want := []string{"EndpointSlice  AddressRefused", "Service u-1 AddressRefused", "Service u-1 InvalidSourceRange"}; !equal(slices.Sorted(slices.Values(told)), want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// All that is queued makes one snapshot, accepted when the oldest came.
func TestBatch(t *testing.T) {
	x := newSubject(t, testConfig())
	x.missing = nil
	before := time.Now()
	for i := range 100 {
		x.queue.put(func(c *Cache) { c.SetService(manyService(i)) })
	}
	after := time.Now()
	x.step()
	x.step()
	if n := len(x.snapshots); n != 1 {
		t.Fatalf("%d snapshots of 100 changes, want 1", n)
	}
	if s := <-x.snapshots; s.Len() != 100 || s.Since().Before(before) || s.Since().After(after) {
		t.Errorf("%d ServicePorts, accepted %s, want 100 between %s and %s", s.Len(), s.Since(), before, after)
	}
	x.queue.put(func(c *Cache) { c.SetService(manyService(7)) })
	x.step()
	if len(x.snapshots) > 0 {
		t.Error("a snapshot without a change")
	}
}
