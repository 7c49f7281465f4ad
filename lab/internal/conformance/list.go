package conformance

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed specs.yaml
var specs []byte

// group is what every spec in the list begins with; it is left out there.
const group = "[sig-network] "

// List is what a run must show.
type List struct {
	// Lacks are the capabilities that modes do not have, as far as specs ask for
	// them.
	Lacks    map[string][]string
	Expected []Expected
	Excluded []Excluded
}

// Expected is a spec that must pass.
type Expected struct {
	Spec       string // its full name, without the group
	Capability string // what a mode must have to pass it; empty: nothing
	// Frozen is what becomes of it in a cluster whose proxy does nothing new: red,
	// so that it proves something when it passes, or green; empty: not tried yet.
	Frozen string
}

// What becomes of a spec.
const (
	red   = "red"
	green = "green"
)

// Excluded are specs that are not run, and why.
type Excluded struct {
	Match  string // a part of their full names
	Reason string
}

// Load returns the list.
func Load() (List, error) {
	var l List
	if err := yaml.UnmarshalStrict(specs, &l); err != nil {
		return l, fmt.Errorf("list of specs: %w", err)
	}
	seen := map[string]bool{}
	for _, e := range l.Expected {
		if e.Spec == "" || seen[e.Spec] {
			return l, fmt.Errorf("list of specs: %q is there twice, or is no name", e.Spec)
		}
		if !slices.Contains([]string{"", red, green}, e.Frozen) {
			return l, fmt.Errorf("list of specs: %q is frozen: %q, which is neither %s nor %s", e.Spec, e.Frozen, red, green)
		}
		seen[e.Spec] = true
	}
	for _, e := range l.Excluded {
		if e.Match == "" || e.Reason == "" {
			return l, fmt.Errorf("list of specs: excluded %q for %q: both must be said", e.Match, e.Reason)
		}
	}
	return l, nil
}

// Select returns the specs that a mode must pass, and those that it cannot. With
// a label, both are only the specs that have it.
func (l List) Select(mode, label string) (want, cannot []Expected) {
	for _, e := range l.Expected {
		switch {
		case label != "" && !strings.Contains(e.Spec, "["+label+"]"):
		case e.Capability != "" && slices.Contains(l.Lacks[mode], e.Capability):
			cannot = append(cannot, e)
		default:
			want = append(want, e)
		}
	}
	return want, cannot
}

// Focus is the regular expression by which Ginkgo finds just these specs.
func Focus(want []Expected) string {
	names := make([]string, 0, len(want))
	for _, e := range want {
		names = append(names, regexp.QuoteMeta(e.Spec))
	}
	return regexp.QuoteMeta(group) + "(" + strings.Join(names, "|") + ")$"
}

// expects tells whether the spec is to be passed by some mode.
func (l List) expects(spec string) bool {
	return slices.ContainsFunc(l.Expected, func(e Expected) bool { return e.Spec == spec })
}

// exclusion returns the first entry that a spec is excluded by.
func (l List) exclusion(spec string) (Excluded, bool) {
	i := slices.IndexFunc(l.Excluded, func(e Excluded) bool { return strings.Contains(spec, e.Match) })
	if i < 0 {
		return Excluded{}, false
	}
	return l.Excluded[i], true
}
