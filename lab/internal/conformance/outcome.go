package conformance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Outcome is a run beside the list.
type Outcome struct {
	Frozen   bool // the proxy did nothing new during the run
	Run      Run
	Passed   []Expected
	Failed   []Expected // ran, and did not pass
	NotRun   []Expected
	Cannot   []Expected // need what the mode lacks
	Excluded []Exclusion
	Unsorted []string // of the group, and neither expected nor excluded
}

// Exclusion are the specs that one entry of the list excludes.
type Exclusion struct {
	Excluded
	Specs []string
}

// Judge compares a run of a mode's specs, or of those with a label, with the list.
func (l List) Judge(run Run, mode, label string, frozen bool) Outcome {
	o := Outcome{Frozen: frozen, Run: run}
	var want []Expected
	want, o.Cannot = l.Select(mode, label)
	for _, e := range want {
		switch r, ran := run.Specs[e.Spec]; {
		case !ran || r.State == skipped:
			o.NotRun = append(o.NotRun, e)
		case r.State == passed:
			o.Passed = append(o.Passed, e)
		default:
			o.Failed = append(o.Failed, e)
		}
	}
	by := map[Excluded][]string{}
	for _, spec := range slices.Sorted(maps.Keys(run.Specs)) {
		if l.expects(spec) {
			continue
		}
		if e, ok := l.exclusion(spec); ok {
			by[e] = append(by[e], spec)
		} else {
			o.Unsorted = append(o.Unsorted, spec)
		}
	}
	for _, e := range l.Excluded {
		o.Excluded = append(o.Excluded, Exclusion{e, by[e]})
	}
	return o
}

// Err is why the run does not show what it must. With a frozen proxy, that is a
// spec which passes and is not said to.
func (o Outcome) Err() error {
	var errs []error
	add := func(specs []string, what string) {
		if len(specs) > 0 {
			errs = append(errs, fmt.Errorf("%d specs %s:\n  %s", len(specs), what, strings.Join(specs, "\n  ")))
		}
	}
	if o.Run.Broken != "" {
		errs = append(errs, fmt.Errorf("the suite is broken: %s", o.Run.Broken))
	}
	add(namesOf(o.NotRun), "did not run")
	if o.Frozen {
		add(namesOf(slices.DeleteFunc(slices.Clone(o.Passed), func(e Expected) bool { return e.Frozen == green })), "pass without a proxy, and the list does not say so")
	} else {
		add(namesOf(o.Failed), "failed")
	}
	add(o.Unsorted, "are neither expected nor excluded")
	for _, e := range o.Excluded {
		if len(e.Specs) == 0 {
			errs = append(errs, fmt.Errorf("no spec is excluded by %q", e.Match))
		}
	}
	return errors.Join(errs...)
}

func namesOf(specs []Expected) []string {
	var out []string
	for _, e := range specs {
		out = append(out, e.Spec)
	}
	return out
}
