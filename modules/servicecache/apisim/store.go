package apisim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// object is one version of an object. It is immutable.
type object struct {
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
	key      string // namespace/name
	name     string
	labels   labels.Set
	json     json.RawMessage
	created  uint64 // the order of lists
}

// change is one step of history.
type change struct {
	revision uint64
	old, now *object // nil: there is none
}

// state is what the server holds.
type state struct {
	mu       sync.Mutex
	revision uint64
	objects  map[string]*object // by resource and key
	history  []change
	oldest   uint64        // watches from before it are told 410 Gone
	dark     bool          // watches see nothing
	dropped  chan struct{} // closed: all watches end
	changed  chan struct{} // closed: there is more history
	absent   map[string]bool
	held     map[string]chan struct{}
	failures int

	noStreams bool
}

func newState() *state {
	return &state{
		revision: 1, objects: map[string]*object{}, dropped: make(chan struct{}), changed: make(chan struct{}),
		absent: map[string]bool{}, held: map[string]chan struct{}{},
	}
}

func (o *object) id() string { return o.resource.Resource + " " + o.key }

// read makes an object of a typed one.
func read(o runtime.Object, revision uint64) (*object, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return nil, fmt.Errorf("unknown object: %w", err)
	}
	o = o.DeepCopyObject()
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, fmt.Errorf("object without metadata: %w", err)
	}
	if revision > 0 {
		m.SetResourceVersion(strconv.FormatUint(revision, 10))
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kinds[0].Kind, m.GetName(), err)
	}
	return &object{
		resource: resourceOf(kinds[0]), kind: kinds[0], key: m.GetNamespace() + "/" + m.GetName(), name: m.GetName(),
		labels: m.GetLabels(), json: text, created: revision,
	}, nil
}

// set adds or replaces an object.
func (s *state) set(o runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := read(o, s.revision+1)
	if err != nil {
		return err
	}
	old := s.objects[now.id()]
	if old != nil {
		now.created = old.created
	}
	s.objects[now.id()] = now
	s.record(old, now)
	return nil
}

// remove deletes an object if it is there.
func (s *state) remove(o runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := read(o, 0)
	if err != nil {
		return err
	}
	if old := s.objects[now.id()]; old != nil {
		delete(s.objects, now.id())
		s.record(old, nil)
	}
	return nil
}

func (s *state) record(old, now *object) {
	s.revision++
	s.history = append(s.history, change{s.revision, old, now})
	close(s.changed)
	s.changed = make(chan struct{})
}

// forget drops all history and all watches.
func (s *state) forget() {
	s.history, s.oldest = nil, s.revision
	s.drop()
}

func (s *state) drop() {
	close(s.dropped)
	s.dropped = make(chan struct{})
}

// selector is what a list or watch asks for.
type selector struct {
	resource  schema.GroupVersionResource
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func (q *selector) matches(o *object) bool {
	if o == nil || o.resource != q.resource {
		return false
	}
	namespace := o.key[:len(o.key)-len(o.name)-1]
	return (q.namespace == "" || q.namespace == namespace) && q.labels.Matches(o.labels) &&
		q.fields.Matches(fields.Set{metav1.ObjectNameField: o.name, "metadata.namespace": namespace})
}

// list returns what matches, in order of creation.
func (s *state) list(q *selector) []*object {
	var found []*object
	for _, o := range s.objects {
		if q.matches(o) {
			found = append(found, o)
		}
	}
	return inOrder(found)
}

func inOrder(os []*object) []*object {
	slices.SortFunc(os, func(a, b *object) int { return cmp.Compare(a.created, b.created) })
	return os
}

func resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return plural
}
