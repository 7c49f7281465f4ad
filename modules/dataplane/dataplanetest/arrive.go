package dataplanetest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func familyOf(s Shot) dataplane.Family { return dataplane.FamilyOf(s.Flow.Dst.Addr()) }

// patience is how long an answer or a refusal may take on a busy machine. It is
// less than the second after which the kernel sends a SYN again: who is refused
// only then is not refused at once. Silence is waited for DefaultTimeout.
const patience = 900 * time.Millisecond

// miss is a flow that ended where it should not.
type miss struct {
	shot   Shot
	err    error
	silent bool
}

// checkArrivals is the second half of law 4: real packets.
func (b *bed) checkArrivals(shots []Shot) {
	b.t.Helper()
	wrong := b.misled(shots, b.want)
	if len(wrong) == 0 {
		return
	}
	explained := ""
	for _, m := range wrong[:min(len(wrong), 3)] {
		e, err := b.explain(m.shot)
		explained += fmt.Sprintf("\n%s: what the plane reads from the kernel (%v):\n%s", m.shot, err, stepsOf(e))
	}
	b.fail("%d of %d flows end where they should not:\n%s%s", len(wrong), len(shots), listed(wrong), explained)
}

func listed(wrong []miss) string {
	var b strings.Builder
	for _, m := range wrong {
		fmt.Fprintln(&b, m.err)
	}
	return b.String()
}

// misled sends new flows and tells which of them end as none of the snapshots
// says.
func (b *bed) misled(shots []Shot, legal ...*dataplane.Snapshot) []miss {
	b.t.Helper()
	b.forget()
	// Silence is the only end that a busy machine can feign: such flows are asked
	// again, with more time, and then one after the other until enough are known.
	wrong, silent := apart(b.ask(shots, legal, rig.DefaultTimeout))
	more, silent := apart(b.ask(silent, legal, patience))
	wrong = append(wrong, more...)
	for _, s := range silent {
		if len(wrong) < enough {
			wrong = append(wrong, b.insist(s, legal)...)
		}
	}
	return wrong
}

// insist asks one flow until it is not silent. What many flows have set off goes
// on when they are given up: a relay dials for seconds.
func (b *bed) insist(s Shot, legal []*dataplane.Snapshot) (wrong []miss) {
	const attempts = 5
	limit := patience
	if s.From == "node" && !b.cfg.Mode.Has(dataplane.RefuseWhileDraining) {
		limit *= 2
	}
	for range attempts {
		wrong = b.ask([]Shot{s}, legal, limit)
		if len(wrong) == 0 || !wrong[0].silent {
			break
		}
	}
	return wrong
}

// enough flows that have gone wrong show what is the matter; the others that may
// have are not asked one by one.
const enough = 3

// apart takes out the flows that have met with silence.
func apart(all []miss) (wrong []miss, silent []Shot) {
	for _, m := range all {
		if m.silent {
			silent = append(silent, m.shot)
		} else {
			wrong = append(wrong, m)
		}
	}
	return wrong, silent
}

// ask sends flows and judges where they end.
func (b *bed) ask(shots []Shot, legal []*dataplane.Snapshot, timeout time.Duration) []miss {
	shots = slices.Clone(shots)
	for i, s := range shots {
		if slices.ContainsFunc(legal, func(w *dataplane.Snapshot) bool { return !returns(w.Decide(s.Flow), s) }) {
			shots[i].SourcePort = b.freshPort() // the answer may not find its sender
		}
	}
	var wrong []miss
	for i, got := range fire(b.t.Context(), b.rig, shots, timeout) {
		if shots[i].SourcePort != 0 && got.Outcome == rig.Silent {
			got = b.seen(shots[i], legal, timeout, got)
		}
		if err := b.judge(shots[i], got, legal); err != nil {
			wrong = append(wrong, miss{shots[i], err, got.Outcome == rig.Silent})
		}
	}
	return wrong
}

// seen looks for a flow that its sender has had no answer to at the other node:
// that it arrived there counts as an answer.
func (b *bed) seen(s Shot, legal []*dataplane.Snapshot, patience time.Duration, silence rig.Result) rig.Result {
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	from := netip.AddrPortFrom(s.Flow.Src.Addr(), s.SourcePort)
	sighting, err := b.watch.Await(ctx, func(got rig.Sighting) bool {
		return got.Source == from && slices.ContainsFunc(legal, func(w *dataplane.Snapshot) bool {
			_, ok := w.Decide(s.Flow).Endpoint(got.Local)
			return ok
		})
	})
	if err != nil {
		return silence
	}
	return rig.Result{Outcome: rig.Answered, Sighting: sighting}
}

// judge is content if one of the snapshots is. Between two of them, a flow that
// not both let through may also be refused or lost: a Service that comes or goes
// does so in steps. But none may be let through by neither.
func (b *bed) judge(s Shot, got rig.Result, legal []*dataplane.Snapshot) error {
	var err error
	stopped := got.Outcome == rig.Refused || got.Outcome == rig.Silent
	for _, want := range legal {
		a := arrival{want: want, keepSource: b.cfg.Mode.Has(dataplane.KeepSource)}
		if err = a.check(s, got); err == nil {
			return nil
		}
		v := want.Decide(s.Flow)
		if len(legal) > 1 && stopped && (!answers(v, s) || b.orphaned && v.Action == dataplane.Forward) {
			return nil
		}
	}
	if got.Outcome == rig.Answered && isBetween(legal, s, got.Local) {
		return nil
	}
	return err
}

// isBetween tells whether a flow has come to an endpoint in the middle of a
// change of both a ServicePort's policies and its endpoints, which modes may
// make one after the other: to an endpoint of one pool before, or of another one
// after.
func isBetween(legal []*dataplane.Snapshot, s Shot, end netip.AddrPort) bool {
	first := legal[0].Decide(s.Flow)
	rerouted, found := false, false
	for _, want := range legal {
		v := want.Decide(s.Flow)
		if v.Action != dataplane.Forward || v.ServicePort.Name != first.ServicePort.Name {
			return false
		}
		rerouted = rerouted || Rerouted(first, v)
		for _, p := range v.ServicePort.Pools {
			_, in := p.Find(end)
			found = found || in
		}
	}
	return rerouted && found
}

// Rerouted tells whether policies forward a flow another way, whatever the
// endpoints are.
func Rerouted(before, after dataplane.Verdict) bool {
	if before.Action != dataplane.Forward || after.Action != dataplane.Forward {
		return false
	}
	a, b := before.Frontend.Routes[before.Origin], after.Frontend.Routes[after.Origin]
	return a.Pool.Scope != b.Pool.Scope || a.Masquerade != b.Masquerade
}

// stepsOf prints the way of each outcome.
func stepsOf(e dataplane.Explanation) string {
	var b strings.Builder
	for _, o := range e.Outcomes {
		fmt.Fprintf(&b, "%s %s masqueraded=%t probability=%.3f\n", o.Action, o.Endpoint, o.Masqueraded, o.Probability)
		for _, s := range o.Steps {
			fmt.Fprintf(&b, "  %s: %s\n", s.Object, s.Detail)
		}
	}
	for _, n := range e.Notes {
		fmt.Fprintln(&b, "note:", n)
	}
	return b.String()
}
