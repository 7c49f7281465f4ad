package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// Flows is a table of tracked UDP flows. [Table] is the kernel's.
type Flows interface {
	// Dump yields the UDP flows of a family one by one, so that memory does not
	// grow with their number, until yield says false. A flow that comes or
	// goes meanwhile may be missed or yielded twice.
	Dump(ctx context.Context, f dataplane.Family, yield func(Entry) bool) error
	// Delete removes entries and returns how many it found. Absent ones are no
	// error. One that cannot be deleted does not keep the others from it.
	Delete(ctx context.Context, entries []Entry) (int, error)
}

// Pass tells what one walk through the table did.
type Pass struct {
	Family   dataplane.Family
	Seen     int // entries judged
	Stale    int // entries found stale
	Deleted  int // entries deleted
	Duration time.Duration
	Err      error // the pass will be repeated
}

// batch is how many entries a Cleaner holds, and deletes, at a time.
const batch = 128

// After a failed pass the next one waits, twice as long each time.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// A Cleaner deletes the stale UDP flows of one family.
//
//  1. It never delays a Sync: passes run on the goroutine of [Cleaner.Run], and
//     Syncs that end meanwhile are dealt with in one more pass.
//  2. The first good Sync is followed by a pass, whatever changed while nobody
//     looked; later ones if UDP Service ports changed, or the plane read the
//     kernel anew.
//  3. It deletes nothing that is right according to the snapshot applied last or
//     to the one being applied now, whose flows may exist already.
//  4. What a failed pass had to do is done by a later one.
type Cleaner struct {
	flows   Flows
	family  dataplane.Family
	observe func(Pass)
	relays  func(dataplane.Protocol, netip.AddrPort) bool // nil: nobody
	wake    chan struct{}
	wanted  atomic.Pointer[dataplane.Snapshot] // being applied, or applied last

	mu  sync.Mutex
	job job
}

// job is what the next pass must do.
type job struct {
	due     bool
	applied *dataplane.Snapshot // nil before the first good Sync
	removed Removed
}

// NewCleaner returns a Cleaner that calls observe after each pass.
func NewCleaner(flows Flows, f dataplane.Family, observe func(Pass)) *Cleaner {
	return &Cleaner{
		flows: flows, family: f, observe: observe,
		wake: make(chan struct{}, 1),
		job:  job{removed: make(Removed)},
	}
}

// Spare keeps entries that lead to where a relay of this node listens, for as
// long as it does: which endpoint it relays to, conntrack does not know. It must
// be called before Run.
func (c *Cleaner) Spare(relays func(dataplane.Protocol, netip.AddrPort) bool) { c.relays = relays }

// Run cleans until the context ends.
func (c *Cleaner) Run(ctx context.Context) {
	wait := firstRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		j, due := c.take()
		if !due {
			continue
		}
		p := c.pass(ctx, j)
		c.observe(p)
		if p.Err == nil {
			wait = firstRetry
			continue
		}
		c.putBack(j)
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, lastRetry)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// take hands the collected work to a pass.
func (c *Cleaner) take() (job, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.job
	c.job.due, c.job.removed = false, make(Removed)
	return j, j.due
}

// putBack returns the work of a failed pass.
func (c *Cleaner) putBack(j job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range j.removed {
		c.job.removed[k] = true
	}
	c.demand()
}

// demand asks for a pass.
func (c *Cleaner) demand() {
	c.job.due = true
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// pass judges every entry and deletes the stale ones, some at a time while the
// table is still being read.
func (c *Cleaner) pass(ctx context.Context, j job) Pass {
	start := time.Now()
	p := Pass{Family: c.family}
	stale := make([]Entry, 0, batch)
	var failed error
	flush := func() {
		n, err := c.flows.Delete(ctx, stale)
		p.Deleted += n
		if failed == nil {
			failed = err // one of them is enough: they are all alike
		}
		stale = stale[:0]
	}
	err := c.flows.Dump(ctx, c.family, func(e Entry) bool {
		p.Seen++
		if c.stale(j, e) {
			p.Stale++
			if stale = append(stale, e); len(stale) == batch {
				flush()
			}
		}
		return ctx.Err() == nil
	})
	if len(stale) > 0 {
		flush()
	}
	p.Err = errors.Join(err, failed, ctx.Err())
	p.Duration = time.Since(start)
	return p
}

// stale asks both snapshots. The one being applied is loaded after the entry
// was read: an entry that exists because of it finds it here.
func (c *Cleaner) stale(j job, e Entry) bool {
	if !Judge(j.applied, j.removed, e).Stale() || c.relays != nil && c.relays(e.Protocol, e.Reply.Src) {
		return false
	}
	wanted := c.wanted.Load()
	return wanted == j.applied || Judge(wanted, j.removed, e).Stale()
}

// begin notes that a snapshot is about to be applied.
func (c *Cleaner) begin(want *dataplane.Snapshot) { c.wanted.Store(want) }

// end notes how that went.
func (c *Cleaner) end(want *dataplane.Snapshot, r dataplane.Report, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := c.job.applied == nil || r.Full
	for _, k := range r.Removed {
		if k.Protocol == dataplane.UDP {
			c.job.removed[k], due = true, true
		}
	}
	if err != nil {
		return // what went is noted; the pass comes after the next good Sync
	}
	if c.noteChanges(want) || due {
		c.demand()
	}
	c.job.applied = want
}

// noteChanges tells whether the next snapshot changes what Judge goes by. Every
// frontend of an older version of a Service port counts as removed; if it is
// still there this has no effect.
func (c *Cleaner) noteChanges(want *dataplane.Snapshot) bool {
	if c.job.applied == nil {
		return true
	}
	changed := !slices.Equal(c.job.applied.Node().NodePortAddrs, want.Node().NodePortAddrs)
	for ch := range want.ChangesSince(c.job.applied) {
		if ch.Name.Protocol != dataplane.UDP {
			continue
		}
		changed = true
		if ch.Old == nil {
			continue
		}
		for _, f := range ch.Old.Frontends {
			c.job.removed[f.Key(dataplane.UDP)] = true
		}
	}
	return changed
}
