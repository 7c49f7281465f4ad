package conntrack_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
)

// memory is a conntrack table in memory. Its fields are set with change.
type memory struct {
	mu      sync.Mutex
	entries []conntrack.Entry
	dumps   int
	// failDump and failDelete let calls fail; onEntry runs before each entry is
	// handed over.
	failDump, failDelete error
	onEntry              func(conntrack.Entry)
	perDelete            time.Duration
}

func (m *memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *memory) Dump(ctx context.Context, f dataplane.Family, yield func(conntrack.Entry) bool) error {
	var entries []conntrack.Entry
	var onEntry func(conntrack.Entry)
	var err error
	m.change(func() {
		m.dumps++
		entries, onEntry, err = slices.Clone(m.entries), m.onEntry, m.failDump
	})
	for _, e := range entries {
		if err != nil {
			return err
		}
		if dataplane.FamilyOf(e.Orig.Src.Addr()) != f {
			continue
		}
		if onEntry != nil {
			onEntry(e)
		}
		if !yield(e) {
			return ctx.Err()
		}
	}
	return err
}

func (m *memory) Delete(_ context.Context, es []conntrack.Entry) (n int, err error) {
	m.change(func() {
		time.Sleep(time.Duration(len(es)) * m.perDelete) //nolint:forbidigo // virtual time: this is how slow the table is
		if err = m.failDelete; err != nil {
			return
		}
		for _, e := range es {
			if i := slices.Index(m.entries, e); i >= 0 {
				m.entries = slices.Delete(m.entries, i, i+1)
				n++
			}
		}
	})
	return n, err
}

// plane is one of which only Sync matters.
type plane struct {
	dataplane.Plane
	sync func(dataplane.SyncRequest) (dataplane.Report, error)
}

func (p *plane) Sync(_ context.Context, r dataplane.SyncRequest) (dataplane.Report, error) {
	if p.sync == nil {
		return dataplane.Report{}, nil
	}
	return p.sync(r)
}

// setting is a Cleaner at work in a bubble of virtual time.
type setting struct {
	t     *testing.T
	table *memory
	plane *plane
	watch dataplane.Plane
	stop  context.CancelFunc
	log   []conntrack.Pass
}

func start(t *testing.T, entries ...conntrack.Entry) *setting {
	s := &setting{t: t, table: &memory{entries: entries}, plane: &plane{}}
	c := conntrack.NewCleaner(s.table, dataplane.IPv4, func(p conntrack.Pass) {
		s.table.change(func() { s.log = append(s.log, p) })
	})
	s.watch = c.Watch(s.plane)
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	t.Cleanup(cancel)
	go c.Run(ctx)
	return s
}

// sync applies a snapshot and waits until nothing moves.
func (s *setting) sync(want *dataplane.Snapshot) error {
	_, err := s.watch.Sync(s.t.Context(), dataplane.SyncRequest{Want: want})
	synctest.Wait()
	return err
}

func (s *setting) mustSync(want *dataplane.Snapshot) {
	s.t.Helper()
	if err := s.sync(want); err != nil {
		s.t.Fatal(err)
	}
}

func (s *setting) passes() (log []conntrack.Pass) {
	s.table.change(func() { log = slices.Clone(s.log) })
	return log
}

func (s *setting) dumps() (n int) {
	s.table.change(func() { n = s.table.dumps })
	return n
}

func (s *setting) left(want ...conntrack.Entry) {
	s.t.Helper()
	s.table.change(func() {
		if !slices.Equal(s.table.entries, want) {
			s.t.Errorf("left: %v\nwant: %v", s.table.entries, want)
		}
	})
}

func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time passes
	synctest.Wait()
}
