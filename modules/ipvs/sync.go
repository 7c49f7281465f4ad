package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// Plane makes the Services of one family work by IPVS.
type Plane struct {
	family    dataplane.Family
	options   Options
	netfilter netfilter.Kernel
	servers   kernel.Servers
	device    kernel.Device
	sysctls   kernel.Sysctls
	// settings are the sysctls that the mode wants.
	settings    []kernel.Setting
	local       func() (func(netip.Addr) bool, error)
	randomFully bool
	warnings    []string
	ranks       ranks
	// unknown are schedulers that the kernel refused.
	unknown map[string]bool

	// What follows is forgotten when a Sync fails.
	last   *dataplane.Snapshot
	model  *model
	rules  map[chainID][]netfilter.Rule
	state  map[kernel.Key]*have
	locals map[netip.Addr]kernel.Local
	// suspect: something was refused that should not have been, so the next
	// Sync reads the kernel.
	suspect bool

	drains drains
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
	report := dataplane.Report{Full: p.model == nil || p.suspect || req.Distrust}
	if p.model == nil {
		report.Warnings = slices.Clone(p.warnings)
	}
	s := &pass{Plane: p, report: &report, now: req.Now, written: make(map[string]int)}
	if err := s.run(ctx, req.Want); err != nil {
		p.forget()
		if report.Removed != nil {
			p.owed = report.Removed
		}
		return report, fmt.Errorf("ipvs mode, %s: %w", p.family, err)
	}
	p.last, p.owed, p.suspect = req.Want, nil, s.refused
	s.tell()
	return report, nil
}

func (p *Plane) forget() {
	p.last, p.model, p.rules, p.state, p.locals, p.suspect = nil, nil, nil, nil, nil, false
	p.failed = make(map[dataplane.ServicePortName]error)
}

// Close lets go of the socket; the kernel goes on forwarding.
func (p *Plane) Close() error {
	p.forget()
	if err := p.servers.Close(); err != nil {
		return fmt.Errorf("ipvs mode, %s: %w", p.family, err)
	}
	return nil
}

// pass is one Sync.
type pass struct {
	*Plane
	report  *dataplane.Report
	now     time.Time
	reading *reading // of this Sync, until its first commit
	// unclaimed are virtual servers that are not ours unless a Service comes to
	// want them.
	unclaimed map[kernel.Key]*have
	// lost are virtual servers that somebody else took since they were last read,
	// and where they stood.
	lost map[kernel.Key]int
	// refused: the kernel refused what should have worked.
	refused bool
	// leftovers: what only kube-proxy has in its ipvs mode is there.
	leftovers bool
	written   map[string]int // by kind of object
}

func (s *pass) run(ctx context.Context, want *dataplane.Snapshot) error {
	first := s.model == nil
	if s.report.Full {
		if err := s.prepare(ctx); err != nil {
			return err
		}
	}
	if first {
		s.model = newModel(want.Node(), s.translator(), s.randomFully)
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
	if err := s.start(ctx, changes, first && s.isCold()); err != nil {
		return err
	}
	s.sweep(ctx)
	return s.drain(ctx)
}

// translator is one for the plane's family.
func (p *Plane) translator() translator {
	return translator{family: p.family, scheduler: p.options.scheduler(), unknown: p.unknown}
}

// prepare sets what is not of any Service, looks at the kernel, and reports
// what others have changed in it.
func (s *pass) prepare(ctx context.Context) error {
	r, err := s.read(ctx)
	if err != nil {
		return err
	}
	m := s.model
	if m == nil {
		m = newModel(&dataplane.Node{}, s.translator(), false)
	}
	s.unclaimed = r.keepOurs(s.options, m)
	if s.model != nil {
		s.report.Repaired = s.differences(s.model, r)
		s.model.allDirty()
	}
	s.reading, s.leftovers = r, r.leftovers
	s.lost = lostOf(s.state, r.servers)
	s.rules, s.state, s.locals = r.chains, r.servers, r.locals
	return s.settle(ctx)
}

// settle makes the device and sets sysctls and timeouts. What cannot be set is
// a warning (kubernetes#24295).
func (s *pass) settle(ctx context.Context) error {
	changed, err := s.device.Ensure(ctx)
	if err != nil {
		return fmt.Errorf("make the device %s: %w", kernel.DeviceName, err)
	}
	if changed {
		s.report.Writes++
	}
	set, errs := kernel.Set(s.sysctls, s.settings)
	s.report.Writes += len(set)
	for _, err := range errs {
		s.warn("%v", err)
	}
	want := s.options.Timeouts
	if want == (kernel.Timeouts{}) {
		return nil
	}
	have, err := s.servers.Timeouts(ctx)
	if err == nil && want.Or(have) != have {
		s.report.Writes++
		err = s.servers.SetTimeouts(ctx, want)
	}
	if err != nil {
		s.warn("the timeouts of IPVS are not as configured: %v", err)
	}
	return nil
}

func (s *pass) warn(format string, args ...any) {
	s.report.Warnings = append(s.report.Warnings, fmt.Sprintf(format, args...))
}

// forgive forgets failures that do not matter any more.
func (s *pass) forgive(want *dataplane.Snapshot) {
	maps.DeleteFunc(s.failed, func(n dataplane.ServicePortName, _ error) bool {
		sp, wanted := want.ServicePort(n)
		return !wanted || sp == s.model.ports[n]
	})
}

// isCold tells whether nothing forwards here yet.
func (s *pass) isCold() bool {
	_, running := s.rules[chainID{netfilter.NAT, chainServices}]
	return !running
}

// start makes what the node itself needs work first if nothing works yet, and
// then refuses what it does not know last, when it knows all
// (kubernetes#133773).
func (s *pass) start(ctx context.Context, changes []change, cold bool) error {
	if !cold {
		return s.install(ctx, changes)
	}
	s.model.begin(s.reading.translated)
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
	s.model.complete()
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

// retries are the changes that try again what failed.
func (s *pass) retries(want *dataplane.Snapshot, listed []change) []change {
	again := maps.Clone(s.failed)
	for _, c := range listed {
		delete(again, c.name)
	}
	var all []change
	for n := range again {
		if sp, ok := want.ServicePort(n); ok {
			all = append(all, change{n, s.model.ports[n], sp})
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
