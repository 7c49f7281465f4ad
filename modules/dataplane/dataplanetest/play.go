package dataplanetest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Play plays one scenario.
func Play(t *testing.T, cfg Config, s Scenario) {
	if len(s.Acts) == 0 {
		t.Fatal("the scenario has no act")
	}
	stage := stage{newBed(t, cfg, s.Acts[0].State), make(map[string]string)}
	for i, act := range s.Acts {
		stage.enter(act.State)
		stage.checkSettled()
		for _, err := range stage.perform(act.Probes) {
			t.Errorf("act %d: %v", i+1, err)
		}
	}
}

// stage is where a scenario is played. It remembers whom clients stick to.
type stage struct {
	*bed
	bound map[string]string
}

// enter makes an act's state real.
func (s stage) enter(state State) {
	if state.HostPort == 0 {
		s.mustSync(state)
		return
	}
	if err := addHostPort(s.t.Context(), s.rig.Node, s.cfg, state.HostPort); err != nil {
		s.t.Fatalf("%v", err)
	}
	s.mustSync(state)
	if _, err := s.sync(true); err != nil { // what others did is seen by a resync
		s.fail("resync: %v", err)
	}
}

// perform compares the probes of an act with the snapshot, and some of them with
// what the plane explains, and sends all at once.
func (s stage) perform(probes []Probe) []error {
	var errs []error
	var sent []Probe
	for _, p := range probes {
		if _, ok := s.planes[dataplane.FamilyOf(p.To.Addr())]; !ok {
			continue
		}
		if err := p.agrees(s.verdict(p)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
		}
		sent = append(sent, p)
	}
	for _, p := range spread(sent, mostExplains(len(sent))) {
		if err := s.explains(p); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
		}
	}
	reached, wrong := make([]map[string]bool, len(sent)), make([]error, len(sent))
	rig.Each(len(sent), func(i int) { reached[i], wrong[i] = s.send(sent[i]) })
	for i, p := range sent {
		err := cmp.Or(wrong[i], s.judgeServers(p, reached[i]))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
		}
	}
	return errs
}

// explains compares the snapshot with what the plane reads from the kernel.
func (s stage) explains(p Probe) error {
	e, err := s.explain(s.shot(p))
	if err == nil {
		err = s.verdict(p).Lacking(s.cfg.Mode.Lacks).Agrees(e)
	}
	if err != nil {
		return fmt.Errorf("explain: %w\n%s", err, stepsOf(e))
	}
	return nil
}

func (s stage) shot(p Probe) Shot {
	return Shot{From: p.From, Flow: s.state.flow(p.From, p.To, p.Protocol)}
}

func (s stage) verdict(p Probe) dataplane.Verdict { return s.want.Decide(s.shot(p).Flow) }

// send sends the flows of a probe until all that is wanted has been seen, and
// tells who answered.
func (s stage) send(p Probe) (reached map[string]bool, err error) {
	reached = make(map[string]bool)
	for range p.flows() {
		got := s.sendOne(p)
		if err := s.judgeOne(p, got); err != nil {
			return reached, err
		}
		reached[got.Server] = true
		if !p.Sticks && len(reached) == len(p.Servers) {
			break
		}
	}
	return reached, nil
}

// flows is how many are sent: enough to reach each endpoint of a few, if all are
// reached at all.
func (p Probe) flows() int {
	switch {
	case p.Outcome != rig.Answered || p.SourcePort != 0:
		return 1
	case p.Sticks:
		return 10
	}
	return 60
}

func (s stage) sendOne(p Probe) rig.Result {
	timeout := rig.DefaultTimeout
	if p.Outcome != rig.Silent {
		timeout = patience
	}
	if !p.Protocol.HasPorts() { // an echo does not say who sent it
		got := s.rig.Host(p.From).Ping(s.t.Context(), p.To.Addr(), timeout)
		if got.Outcome == rig.Answered {
			got.Server, _ = hostOf(p.To.Addr())
		}
		return got
	}
	proto, source := rig.TCP, p.SourcePort
	if p.Protocol == dataplane.UDP {
		// By chance it would be that of a flow of an earlier act, which goes on: it is
		// modules/conntrack that ends those.
		proto, source = rig.UDP, cmp.Or(source, s.freshPort())
	}
	return rig.Probe{
		From: s.rig.Host(p.From), Proto: proto, To: p.To,
		Source: netip.AddrPortFrom(netip.Addr{}, source), Timeout: timeout,
	}.Send(s.t.Context())
}

func (s stage) judgeOne(p Probe, got rig.Result) error {
	if err := wantOutcome(p.Outcome, got); err != nil {
		return err
	}
	if p.Outcome != rig.Answered {
		return nil
	}
	if !slices.Contains(p.Servers, got.Server) {
		return fmt.Errorf("it is %s", got)
	}
	source := p.Source
	if source != "" && source == p.From && !s.cfg.Mode.Has(dataplane.KeepSource) && s.verdict(p).Action == dataplane.Forward {
		source = "node"
	}
	if seen, _ := hostOf(got.Source.Addr()); source != "" && seen != source {
		return fmt.Errorf("it is %s, and the source is not %s", got, source)
	}
	return nil
}

// judgeServers judges all flows of a probe together.
func (s stage) judgeServers(p Probe, reached map[string]bool) error {
	switch {
	case p.Outcome != rig.Answered:
		return nil
	case p.Sticks && len(reached) > 1:
		return fmt.Errorf("the client is sent to each of %v", reached)
	case p.Sticks:
		return s.judgeBinding(p, reached)
	case p.SourcePort == 0 && len(reached) < len(p.Servers):
		return fmt.Errorf("of %v only %v are reached", p.Servers, reached)
	}
	return nil
}

// judgeBinding compares whom a client sticks to with the states before.
func (s stage) judgeBinding(p Probe, reached map[string]bool) error {
	client := fmt.Sprintf("%s %s %s", p.From, p.Protocol, p.To)
	before := s.bound[client]
	if slices.Contains(p.Servers, before) && !reached[before] {
		return fmt.Errorf("the client was bound to %s, and is sent to %v now", before, reached)
	}
	for server := range reached {
		s.bound[client] = server
	}
	return nil
}
