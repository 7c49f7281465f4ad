package dataplanetest

import (
	"fmt"
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

// checkArrivals is the second half of law 4: real packets.
func (b *bed) checkArrivals(shots []Shot) {
	b.t.Helper()
	if wrong := b.misled(shots, b.want); len(wrong) > 0 {
		b.fail("%d of %d flows end where they should not:\n%s", len(wrong), len(shots), strings.Join(wrong, "\n"))
	}
}

// misled sends new flows and tells which of them end as none of the snapshots
// says.
func (b *bed) misled(shots []Shot, legal ...*dataplane.Snapshot) []string {
	b.t.Helper()
	shots = slices.DeleteFunc(slices.Clone(shots), func(s Shot) bool {
		return slices.ContainsFunc(legal, func(w *dataplane.Snapshot) bool { return !returns(w.Decide(s.Flow), s) })
	})
	b.forget()
	return b.ask(shots, legal, rig.DefaultTimeout, func(again []Shot) []string {
		return b.ask(again, legal, patience, nil)
	})
}

// ask sends flows and judges where they end. Those that end in silence are
// handed on, for silence is the only end that a busy machine can feign.
func (b *bed) ask(shots []Shot, legal []*dataplane.Snapshot, timeout time.Duration, retry func([]Shot) []string) []string {
	results := fire(b.t.Context(), b.rig, shots, timeout)
	var wrong []string
	var silent []Shot
	for i, s := range shots {
		err := b.judge(s, results[i], legal)
		switch {
		case err == nil:
		case results[i].Outcome == rig.Silent && retry != nil:
			silent = append(silent, s)
		default:
			wrong = append(wrong, err.Error())
		}
	}
	if len(silent) > 0 {
		wrong = append(wrong, retry(silent)...)
	}
	return wrong
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
	return err
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
