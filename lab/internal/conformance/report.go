package conformance

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Write writes the outcome for people, under a title.
func (o Outcome) Write(w io.Writer, title string) error {
	p := &printer{w: w}
	p.line("# %s\n", title)
	p.line("%s, in %s.\n", o.Summary(), o.Run.Took.Round(time.Second))
	if o.Run.Broken != "" {
		p.line("## Broken\n\n%s", o.Run.Broken)
	}
	if o.Frozen {
		p.results(o, "Red without a proxy: prove something", o.Failed)
		p.results(o, "Green without a proxy: prove nothing", o.Passed)
	} else {
		p.results(o, "Failed", o.Failed)
		for _, kind := range []struct{ title, frozen string }{
			{"Passed, and red without a proxy", red},
			{"Passed, and green without a proxy: prove nothing about it", green},
			{"Passed, and not tried without a proxy yet", ""},
		} {
			p.results(o, kind.title, slices.DeleteFunc(slices.Clone(o.Passed), func(e Expected) bool { return e.Frozen != kind.frozen }))
		}
	}
	p.results(o, "Expected, did not run", o.NotRun)
	var cannot []string
	for _, e := range o.Cannot {
		cannot = append(cannot, e.Spec+": "+e.Capability)
	}
	p.list("Left out, for a capability that the mode lacks", cannot)
	p.list("Neither expected nor excluded", o.Unsorted)
	for _, e := range o.Excluded {
		p.list(fmt.Sprintf("Excluded, %s (%q)", e.Reason, e.Match), e.Specs)
	}
	return p.err
}

// Summary is the outcome in a few words.
func (o Outcome) Summary() string {
	words := []string{fmt.Sprintf("%d passed", len(o.Passed)), fmt.Sprintf("%d failed", len(o.Failed))}
	add := func(n int, what string) {
		if n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(len(o.NotRun), "did not run")
	add(len(o.Cannot), "left out for a capability")
	add(len(o.Unsorted), "unknown")
	return strings.Join(words, ", ")
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) list(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p.line("## %s: %d\n", title, len(lines))
	for _, l := range lines {
		p.line("- %s", l)
	}
	p.line("")
}

func (p *printer) results(o Outcome, title string, specs []Expected) {
	var lines []string
	for _, e := range specs {
		r := o.Run.Specs[e.Spec]
		line := fmt.Sprintf("%s (%s)", e.Spec, r.Took.Round(time.Second))
		if r.Message != "" {
			line += ": " + firstLine(r.Message)
		}
		lines = append(lines, line)
	}
	p.list(title, lines)
}

func firstLine(s string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return first
}
