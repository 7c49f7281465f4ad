package servicecache

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

// apiWorld is what a simulated API server holds.
type apiWorld struct {
	*subject
	random   *rand.Rand
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
}

// change sets or deletes something that is drawn.
func (w *apiWorld) change() error {
	name := func(from string) string { return from[w.random.IntN(len(from)):][:1] }
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	var o runtime.Object
	switch w.random.IntN(5) {
	case 0, 1:
		s := rapid.Custom(drawService).Example(w.random.Int())
		w.services[s.Name], o = s, s
	case 2, 3:
		s := rapid.Custom(drawSlice).Example(w.random.Int())
		w.slices[s.Name], o = s, s
	default:
		service, slice := name("abcd"), name("1234")
		delete(w.services, service)
		delete(w.slices, slice)
		return w.sim.Delete(&corev1.Service{ObjectMeta: meta(service)}, &discoveryv1.EndpointSlice{ObjectMeta: meta(slice)})
	}
	return w.sim.Set(o)
}

// expected is the content of a snapshot of all that the server holds.
func (w *apiWorld) expected(t *testing.T) string {
	c := newCache(t, testConfig(), testCIDR("10.96.0.0/16"))
	for s := range maps.Values(w.services) {
		c.SetService(s)
	}
	for s := range maps.Values(w.slices) {
		c.SetEndpointSlice(s)
	}
	return dump(build(c))
}

// kubernetes#121362, kpng#8: whatever the API server does, the last snapshot
// is what one made at once would be.
func TestAnyHiccupsEndInTheSame(t *testing.T) {
	for seed := range uint64(3) {
		w := &apiWorld{
			subject: ready(t, testConfig()), random: rand.New(rand.NewPCG(seed, 0)),
			services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{},
		}
		for range 10 {
			w.agrees(t)
			change := func() error {
				for range 1 + w.random.IntN(12) {
					if err := w.change(); err != nil {
						return err
					}
				}
				return nil
			}
			var err error
			switch w.random.IntN(4) {
			case 0:
				w.sim.DropWatches()
				err = change()
			case 1:
				err = w.sim.Gap(change)
			case 2:
				w.sim.Fail(w.random.IntN(3))
				err = w.sim.Gap(change)
			default:
				err = change()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		w.agrees(t)
	}
}

// agrees waits for the snapshot that the server's objects ask for.
func (w *apiWorld) agrees(t *testing.T) {
	t.Helper()
	want := w.expected(t)
	deadline := time.After(patience)
	for w.last == nil || dump(w.last) != want {
		select {
		case w.last = <-w.snapshots:
		case <-deadline:
			t.Fatalf("got\n%s\nwant\n%s", dump(w.last), want)
		}
	}
}
