package servicecache

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/portway/portway/modules/dataplane"
)

// Listener is told what a Source finds, by one goroutine, which waits for it.
type Listener struct {
	// Publish gets each new snapshot. The first is complete: it comes after
	// the first list of every kind, and after SetLocal.
	Publish func(*dataplane.Snapshot)
	// Report gets each problem once, when it comes up; may be nil. The Source
	// has logged it.
	Report func(Problem)
	// Came is told how many objects of a kind, Services or EndpointSlices, the
	// API sent, changed or deleted; may be nil. Called by other goroutines, too.
	Came func(kind string, objects int)
	// Node gets the state of the Node object when it changes, the first time
	// when the Nodes were listed; may be nil.
	Node func(NodeStatus)
}

// Source feeds a Cache from an API server.
type Source struct {
	client   kubernetes.Interface
	listener Listener
	log      *slog.Logger
	queue    *queue
	calls    chan func(*Cache)
	backoff  *wait.Backoff // between lists; nil is client-go's

	// Owned by Run.
	cache   *Cache
	missing map[string]bool // what must come before the first snapshot
	oldest  time.Time       // acceptance of what was not yet published
	last    *dataplane.Snapshot
	node    *NodeStatus
}

// The kinds of objects that [Listener.Came] counts.
const (
	Services       = "Services"
	EndpointSlices = "EndpointSlices"
)

// What must come before the first snapshot.
const (
	servicesPart = Services
	slicesPart   = EndpointSlices
	nodePart     = "Node"
	cidrsPart    = "ServiceCIDRs"
	localPart    = "local addresses"
)

// NewSource returns a Source that has done nothing yet. It watches all
// Services, the EndpointSlices that belong to one, the node's own Node, and
// the ServiceCIDRs if the configuration wants their free addresses dropped.
func NewSource(client kubernetes.Interface, c Config, l Listener, log *slog.Logger) (*Source, error) {
	cache, err := New(c)
	if err != nil {
		return nil, err
	}
	s := &Source{
		client: client, listener: l, log: log, queue: newQueue(), calls: make(chan func(*Cache)), cache: cache,
		missing: map[string]bool{servicesPart: true, slicesPart: true, nodePart: true, localPart: true},
	}
	if c.DropUnallocated {
		s.missing[cidrsPart] = true
	}
	return s, nil
}

// SetLocal replaces what the machine says of itself. It may be called at any
// time from any goroutine.
func (s *Source) SetLocal(l Local) {
	s.queue.put(func(c *Cache) {
		c.SetLocal(l)
		s.arrived(localPart)
	})
}

// Run lists and watches until the context ends, whatever becomes of the API
// server. It must be called once.
func (s *Source) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, watch := range s.watches() {
		watches.Go(func() { watch(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.queue.wake:
			s.step()
		case call := <-s.calls:
			call(s.cache)
		}
	}
}

// Explain is [Cache.Explain] for other goroutines, while Run runs.
func (s *Source) Explain(ctx context.Context, v dataplane.Verdict) (r dataplane.Reasons, ok bool, err error) {
	done := make(chan struct{})
	select {
	case s.calls <- func(c *Cache) { r, ok = c.Explain(v); close(done) }:
		<-done
		return r, ok, nil
	case <-ctx.Done():
		return r, false, context.Cause(ctx)
	}
}

// step takes all that is queued, builds once and publishes.
func (s *Source) step() {
	changes, came := s.queue.take()
	if len(changes) == 0 {
		return
	}
	if s.oldest.IsZero() {
		s.oldest = came
	}
	for _, change := range changes {
		change(s.cache)
	}
	s.tellNode()
	if len(s.missing) > 0 {
		return
	}
	snapshot, problems := s.cache.Build(s.oldest)
	s.oldest = time.Time{}
	for _, p := range problems {
		s.tellProblem(p)
	}
	if snapshot != s.last {
		s.last = snapshot
		s.listener.Publish(snapshot)
	}
}

func (s *Source) arrived(part string) {
	if s.missing[part] {
		delete(s.missing, part)
		s.log.Debug("first list is complete", "of", part, "missing", len(s.missing))
	}
}

func (s *Source) tellNode() {
	now := s.cache.NodeStatus()
	if s.missing[nodePart] || s.node != nil && *s.node == now {
		return
	}
	s.node = &now
	if !now.Known {
		s.log.Warn("the Node does not exist; going on with what was known of it", "node", s.cache.NodeName)
	}
	if s.listener.Node != nil {
		s.listener.Node(now)
	}
}

func (s *Source) tellProblem(p Problem) {
	s.log.Warn("part of an object is not served",
		"kind", p.Object.Kind, "namespace", p.Object.Namespace, "name", p.Object.Name,
		"field", p.Field, "reason", string(p.Reason), "message", p.Message)
	if s.listener.Report != nil {
		s.listener.Report(p)
	}
}
