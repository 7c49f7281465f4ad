package servicecache

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// queue hands changes from the watches to the one goroutine that owns the
// Cache.
type queue struct {
	mu      sync.Mutex
	changes []func(*Cache)
	oldest  time.Time // when the first of them came
	wake    chan struct{}
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) put(change func(*Cache)) {
	q.mu.Lock()
	if len(q.changes) == 0 {
		q.oldest = time.Now()
	}
	q.changes = append(q.changes, change)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // somebody has said so
	}
}

// take returns all that is there.
func (q *queue) take() ([]func(*Cache), time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes := q.changes
	q.changes = nil
	return changes, q.oldest
}

// inbox is where a Reflector puts the objects of one kind. It reads them at
// once, in the Reflector's goroutine, into the little that the Cache keeps, so
// that there is no second copy of the API's objects: a Reflector's store does
// not need to remember, for the Cache knows what a new list lacks.
type inbox[O, M any] struct {
	queue   *queue
	read    func(O) M
	set     func(*Cache, M)
	remove  func(*Cache, O)
	replace func(*Cache, []M)
	listed  func()    // after each list, by the Cache's goroutine
	came    func(int) // how many objects the API sent
	trim    func(O)   // drops what read does not look at; may be nil
}

var _ cache.TransformingStore = (*inbox[any, any])(nil)

func (b *inbox[O, M]) Add(o any) error {
	m := b.read(o.(O)) // the Reflector checks the type
	b.queue.put(func(c *Cache) { b.set(c, m) })
	b.came(1)
	return nil
}

func (b *inbox[O, M]) Update(o any) error { return b.Add(o) }

func (b *inbox[O, M]) Delete(o any) error {
	b.queue.put(func(c *Cache) { b.remove(c, o.(O)) })
	b.came(1)
	return nil
}

// Replace gets every object of a new list; what it lacks was deleted while
// nobody watched.
func (b *inbox[O, M]) Replace(list []any, _ string) error {
	ms := make([]M, 0, len(list))
	for _, o := range list {
		ms = append(ms, b.read(o.(O)))
	}
	b.queue.put(func(c *Cache) {
		b.replace(c, ms)
		b.listed()
	})
	b.came(len(list))
	return nil
}

func (b *inbox[O, M]) Resync() error { return nil }

// Transformer makes objects small while the Reflector collects a list.
func (b *inbox[O, M]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
		if obj, ok := o.(O); ok && b.trim != nil {
			b.trim(obj)
		}
		return o, nil
	}
}
