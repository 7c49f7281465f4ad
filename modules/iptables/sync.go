package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// Plane makes the Services of one family work by rules of iptables.
type Plane struct {
	family      dataplane.Family
	kernel      netfilter.Kernel
	local       func() (func(netip.Addr) bool, error)
	randomFully bool
	// chunk is how many chains one transaction may write; 0 is no limit.
	chunk    int
	warnings []string

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

// retryAfter is when a ServicePort that could not be programmed is tried
// again, if nothing of it has changed.
const retryAfter = 30 * time.Second

// change is a ServicePort that differs between the model and what is wanted.
type change struct {
	name     dataplane.ServicePortName
	old, new *dataplane.ServicePort
}

// Sync makes the kernel equal to the wanted snapshot. What it remembers of the
// kernel is what the kernel has confirmed; after an error it remembers nothing
// and reads all of it the next time.
func (p *Plane) Sync(ctx context.Context, req dataplane.SyncRequest) (dataplane.Report, error) {
	report := dataplane.Report{Full: p.model == nil || req.Distrust}
	if p.model == nil {
		report.Warnings = slices.Clone(p.warnings)
	}
	s := &pass{Plane: p, report: &report, now: req.Now, written: make(map[netfilter.Table]int)}
	if err := s.run(ctx, req.Want); err != nil {
		p.forget()
		if report.Removed != nil {
			p.owed = report.Removed
		}
		return report, fmt.Errorf("iptables mode, %s: %w", p.family, err)
	}
	p.last, p.owed = req.Want, nil
	s.tell()
	return report, nil
}

func (p *Plane) forget() {
	p.last, p.model, p.have, p.digest, p.witness = nil, nil, nil, nil, witness{}
	p.failed = make(map[dataplane.ServicePortName]error)
}

// Close forgets what it knows; the rules stay and go on forwarding.
func (p *Plane) Close() error {
	p.forget()
	return nil
}

// pass is one Sync.
type pass struct {
	*Plane
	report  *dataplane.Report
	now     time.Time
	reading *reading // of this Sync, until its first commit
	// refusals counts the writes that were refused.
	refusals int
	written  map[netfilter.Table]int // rules
}

func (s *pass) run(ctx context.Context, want *dataplane.Snapshot) error {
	first := s.model == nil
	if s.report.Full {
		if err := s.read(ctx); err != nil {
			return err
		}
	}
	if first {
		s.model = newModel(want.Node(), s.family, s.randomFully)
	}
	s.forgive(want)
	changes := s.changes(want)
	s.report.Removed = s.removed(want, changes)
	for _, f := range s.model.setNode(want.Node()) {
		s.failed[f.Name] = f.Err
	}
	if s.last == nil || !sameFixed(want, s.last) {
		s.model.setFixed(fixedEntries(want, s.family))
	}
	if first && s.isCold() {
		return s.coldStart(ctx, changes)
	}
	return s.install(ctx, changes)
}

// forgive forgets failures that do not matter any more.
func (s *pass) forgive(want *dataplane.Snapshot) {
	maps.DeleteFunc(s.failed, func(n dataplane.ServicePortName, _ error) bool {
		sp, wanted := want.ServicePort(n)
		return !wanted || sp == s.model.ports[n]
	})
}

// read looks at the kernel, and reports what others have changed in it.
func (s *pass) read(ctx context.Context) error {
	if s.digest == nil {
		s.digest = newDigester()
	}
	r, err := s.look(ctx)
	if err != nil {
		return err
	}
	if s.model != nil {
		s.report.Repaired = differences(s.model, s.have, r)
		if !r.remembered {
			s.model.allDirty()
		}
	}
	s.reading, s.have = r, r.chains
	s.held = make(map[netfilter.Table]int)
	for id, d := range s.have {
		s.held[id.table] += d.rules
	}
	return nil
}

// look reads the kernel, or only its sets where the rules are as we left them.
func (s *pass) look(ctx context.Context) (r *reading, err error) {
	if s.model != nil && s.untouched(ctx) {
		r = s.remembered()
		return r, r.readSets(ctx, s.kernel, s.family)
	}
	err = s.watchRead(ctx, func() (err error) {
		r, err = read(ctx, s.kernel, s.family, s.digest, s.have)
		return err
	})
	return r, err
}

// remembered is what a reading of the rules would find if they are as we left
// them.
func (p *Plane) remembered() *reading {
	r := newReading()
	r.remembered, r.chains = true, p.have
	for _, h := range hooks() {
		r.hooks[h.id] = h.jumps
	}
	return r
}

// isCold tells whether nothing forwards here yet.
func (s *pass) isCold() bool {
	_, running := s.have[chainID{netfilter.NAT, chainServices}]
	return !running
}

// coldStart makes what the node itself needs work first, and refuses what it
// does not know last, when it knows all (kubernetes#133773).
func (s *pass) coldStart(ctx context.Context, changes []change) error {
	s.model.setLenient(true)
	n := slices.IndexFunc(changes, func(c change) bool { return c.new == nil || c.new.Priority == dataplane.PriorityNormal })
	if n > 0 {
		if err := s.install(ctx, changes[:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	if err := s.install(ctx, changes); err != nil {
		return err
	}
	s.model.setLenient(false)
	return s.install(ctx, nil)
}

// changes are what the model does not hold as it is wanted. If nothing is
// taken on trust they are found by comparing all, which finds also those that
// failed earlier.
func (s *pass) changes(want *dataplane.Snapshot) []change {
	var all []change
	if !s.report.Full && s.last != nil {
		for c := range want.ChangesSince(s.last) {
			all = append(all, change{c.Name, s.model.ports[c.Name], c.New})
		}
		if len(s.failed) > 0 && !s.now.Before(s.retry) {
			all = append(all, s.retries(want, all)...)
		}
		return all
	}
	for sp := range want.ServicePorts() {
		if old := s.model.ports[sp.Name]; old != sp {
			all = append(all, change{sp.Name, old, sp})
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.model.ports), dataplane.ServicePortName.Compare) {
		if _, ok := want.ServicePort(name); !ok {
			all = append(all, change{name, s.model.ports[name], nil})
		}
	}
	return all
}

// removed are the frontends that were in the kernel and are in the snapshot no
// more.
func (s *pass) removed(want *dataplane.Snapshot, changes []change) []dataplane.FrontendKey {
	var gone []dataplane.FrontendKey
	note := func(k dataplane.FrontendKey) {
		if _, ok := want.Lookup(k); !ok {
			gone = append(gone, k)
		}
	}
	for _, k := range s.owed {
		note(k)
	}
	if s.last == nil && s.reading != nil {
		for _, k := range s.reading.claimed {
			note(k)
		}
	}
	for _, c := range changes {
		if c.old == nil {
			continue
		}
		for _, f := range c.old.Frontends {
			if f.Family == s.family {
				note(f.Key(c.name.Protocol))
			}
		}
	}
	slices.SortFunc(gone, dataplane.FrontendKey.Compare)
	return slices.Compact(gone)
}

// counted keeps count of the rules in our chains.
func (s *pass) counted(t netfilter.Table, more, written int) {
	s.held[t] += more
	s.written[t] += written
}

// tell completes the report.
func (s *pass) tell() {
	s.report.Objects = make(map[string]dataplane.ObjectCount)
	for _, t := range tables() {
		s.report.Objects[string(t)] = dataplane.ObjectCount{Held: s.held[t], Written: s.written[t]}
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.failed), dataplane.ServicePortName.Compare) {
		s.report.Failed = append(s.report.Failed, dataplane.Failure{Name: name, Err: s.failed[name]})
	}
	if len(s.failed) > 0 {
		if !s.now.Before(s.retry) {
			s.retry = s.now.Add(retryAfter)
		}
		s.report.Again = s.retry
	}
}
