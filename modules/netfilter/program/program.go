package program

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// A Program is what one mode has in the kernel for one family. Make one with
// [New]; it is not safe for concurrent use.
type Program struct {
	Layout *Layout
	Kernel netfilter.Kernel
	// Chunk is how many chains one transaction may write; 0 is no limit.
	Chunk int
	// Own is common to the programs of a node.
	Own *Tally

	// What follows is forgotten when a Sync fails.
	last    *dataplane.Snapshot
	model   *model
	have    digests
	held    map[netfilter.Table]int // rules in the chains of have
	digest  *digester
	witness witness

	failed map[dataplane.ServicePortName]error
	retry  time.Time
	// owed are removed frontends that no successful Sync has reported yet.
	owed []dataplane.FrontendKey
}

// New is a Program that knows nothing of the kernel yet.
func New(l *Layout, k netfilter.Kernel, chunk int) *Program {
	p := &Program{Layout: l, Kernel: k, Chunk: chunk, Own: new(Tally)}
	p.Forget()
	return p
}

// RetryAfter is when a ServicePort that could not be programmed is tried
// again, if nothing of it has changed.
const RetryAfter = 30 * time.Second

// Wish is what a Sync shall make of the kernel.
type Wish struct {
	dataplane.SyncRequest
	Frame Frame
	// Anew: the sources of all ServicePorts may be others than before, also of
	// those that did not change.
	Anew bool
	// Source gives the source of a ServicePort. With an error it is programmed
	// as far as the source goes, reported as failed, and tried again later. It
	// is asked in the order of programming, after the kernel was read.
	Source func(*dataplane.ServicePort) (Source, error)
	// Claimed are the frontends that the kernel served before the first Sync,
	// according to the sets that it holds.
	Claimed func([]netfilter.Set) []dataplane.FrontendKey
	// Observe sees the chains of ours that the first Sync finds, if it is not nil.
	// The rules are valid until it returns.
	Observe func(ChainID, []netfilter.Rule)
	// Settle is called after rules were written and before addresses get their
	// meaning, with the ServicePorts that are another version now, if it is not
	// nil.
	Settle func([]dataplane.ServicePortName) error
}

// Source returns what is programmed of a ServicePort.
func (p *Program) Source(n dataplane.ServicePortName) (Source, bool) {
	if p.model == nil {
		return nil, false
	}
	s, ok := p.model.sources[n]
	return s, ok
}

// IsFresh tells whether nothing is known of the kernel: the next Sync reads it.
func (p *Program) IsFresh() bool { return p.model == nil }

// Forget makes the next Sync read the kernel.
func (p *Program) Forget() {
	p.last, p.model, p.have, p.digest, p.witness = nil, nil, nil, nil, witness{}
	p.failed = make(map[dataplane.ServicePortName]error)
}

// Sync makes the kernel equal to the wish. The rules of a table change at once,
// but tables and sets change one after the other, and each step may be the last
// one for a while:
//
//  1. entries that refuse are added: they concern no flow that is translated;
//     addresses that lose their meaning are taken out;
//  2. the tables, in the order of the layout; then Settle;
//  3. addresses that have a meaning now are added, entries that refuse are
//     taken out, sets that no rule names any more are destroyed.
//
// On a cold start it does so three times: for what the node itself needs, for
// all the rest, and for what is late (kubernetes#133773).
func (p *Program) Sync(ctx context.Context, w Wish) (dataplane.Report, error) {
	s := &pass{
		Program: p, wish: w, report: dataplane.Report{Full: p.model == nil || w.Distrust},
		written: make(map[netfilter.Table]int), touched: make(map[dataplane.ServicePortName]bool),
		pending: make(map[dataplane.ServicePortName]bool),
	}
	if err := s.run(ctx); err != nil {
		p.Forget()
		if s.report.Removed != nil {
			p.owed = s.report.Removed
		}
		return s.report, fmt.Errorf("%s mode, %s: %w", p.Layout.Mode, p.Layout.Family, err)
	}
	p.last, p.owed = w.Want, nil
	s.tell()
	return s.report, nil
}

// pass is one Sync.
type pass struct {
	*Program
	wish    Wish
	report  dataplane.Report
	reading *reading // of this Sync, until its first commit
	// refusals counts the writes that were refused.
	refusals int
	written  map[netfilter.Table]int // rules
	// touched are the ServicePorts of which Settle has not heard.
	touched map[dataplane.ServicePortName]bool
	// pending are those that will be staged again, so it shall not hear of them
	// yet.
	pending map[dataplane.ServicePortName]bool
}

func (s *pass) run(ctx context.Context) error {
	first := s.model == nil
	if s.report.Full {
		if err := s.read(ctx); err != nil {
			return err
		}
	}
	if first {
		s.model = newModel(s.Layout, s.wish.Frame)
	}
	want := s.wish.Want
	maps.DeleteFunc(s.failed, func(n dataplane.ServicePortName, _ error) bool {
		_, wanted := want.ServicePort(n)
		return !wanted
	})
	changes := s.changes(want)
	s.report.Removed = s.removed(want, changes)
	s.model.setFrame(s.wish.Frame)
	if s.last == nil || !sameFixed(want, s.last) {
		s.model.setFixed(s.Layout.Fixed(want))
	}
	if _, alive := s.have[s.Layout.Alive]; first && !alive {
		return s.coldStart(ctx, changes)
	}
	return s.install(ctx, s.prepared(changes))
}

// sameFixed tells whether two snapshots give the same fixed entries for sure.
func sameFixed(a, b *dataplane.Snapshot) bool {
	for range a.IgnoredChangesSince(b) {
		return false
	}
	return a.Node() == b.Node() && a.HealthChecksEqual(b)
}

// read looks at the kernel, and reports what others have changed in it.
func (s *pass) read(ctx context.Context) error {
	var observe func(ChainID, []netfilter.Rule)
	if s.model == nil {
		observe = s.wish.Observe
	}
	r, err := s.look(ctx, observe)
	if err != nil {
		return err
	}
	if s.model != nil {
		s.report.Repaired = differences(s.model, s.have, r)
		// What is in our chains is known to be right; hooks and sets are compared
		// with the reading in any case.
		if !maps.Equal(r.chains, s.have) {
			s.model.allDirty()
		}
	}
	s.reading, s.have = r, r.chains
	s.held = make(map[netfilter.Table]int)
	for id, d := range s.have {
		s.held[id.Table] += d.rules
	}
	return nil
}

// look reads the kernel, or only its sets where the rules are as we left them.
func (p *Program) look(ctx context.Context, observe func(ChainID, []netfilter.Rule)) (r *reading, err error) {
	if p.model != nil && p.untouched(ctx) {
		r = p.remembered()
		return r, p.readSets(ctx, r)
	}
	if p.digest == nil {
		p.digest = newDigester()
	}
	err = p.watchRead(ctx, func() (err error) {
		r, err = reader{p, p.have, observe}.read(ctx)
		return err
	})
	return r, err
}

// coldStart makes what the node itself needs work first, and refuses what it
// does not know last, when it knows all.
func (s *pass) coldStart(ctx context.Context, changes []change) error {
	s.model.setLenient(true)
	n := slices.IndexFunc(changes, func(c change) bool { return c.want == nil || c.want.Priority == dataplane.PriorityNormal })
	if n > 0 {
		if err := s.install(ctx, s.prepared(changes[:n])); err != nil {
			return err
		}
		changes = changes[n:]
	}
	if err := s.install(ctx, s.prepared(changes)); err != nil {
		return err
	}
	s.model.setLenient(false)
	return s.install(ctx, nil)
}

// tell completes the report.
func (s *pass) tell() {
	s.report.Objects = make(map[string]dataplane.ObjectCount)
	for _, t := range s.Layout.Tables {
		s.report.Objects[string(t)] = dataplane.ObjectCount{Held: s.held[t], Written: s.written[t]}
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.failed), dataplane.ServicePortName.Compare) {
		s.report.Failed = append(s.report.Failed, dataplane.Failure{Name: name, Err: s.failed[name]})
	}
	if len(s.failed) > 0 {
		if !s.wish.Now.Before(s.retry) {
			s.retry = s.wish.Now.Add(RetryAfter)
		}
		s.report.Again = s.retry
	}
}

// ErrTooManyRefused ends the search for culprits; see [MaxRefusals].
var ErrTooManyRefused = errors.New("too many writes are refused")
