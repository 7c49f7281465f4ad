package ctl

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/portway/portway/modules/dataplane/answer"
)

// PrintJSON writes any answer for programs.
func PrintJSON(w io.Writer, answer any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // it is no HTML
	return e.Encode(answer)
}

// PrintExplanation writes what should happen, what does, and whether they
// agree.
func PrintExplanation(w io.Writer, e answer.Explanation, steps bool) {
	fmt.Fprintf(w, "%s\n", e.Flow)
	if len(e.Planes) == 0 {
		fmt.Fprintln(w, "no plane serves this family")
	}
	for i := range e.Planes {
		p := &e.Planes[i]
		fmt.Fprintf(w, "\n%s\n", p.Plane)
		printShould(w, &p.Should)
		printDoes(w, p, steps)
		if p.Agree {
			fmt.Fprintln(w, "  agree   yes")
		} else {
			fmt.Fprintf(w, "  agree   no: %s\n", p.Disagreement+p.Error)
		}
	}
}

func printShould(w io.Writer, s *answer.Should) {
	fmt.Fprintf(w, "  should  %s: from %s, %s\n", s.Action, s.Origin, s.Reason)
	line := func(what, text string) { fmt.Fprintf(w, "            %-8s  %s\n", what, text) }
	if s.Frontend != nil {
		line("Service", s.Service+", port "+s.ServicePort)
		line("frontend", s.Frontend.Kind+" "+s.Frontend.Address)
	}
	if s.Policy != "" {
		line("policy", s.Policy+": "+s.Choice)
	}
	for _, e := range s.Endpoints {
		in, text := "out", e.Address
		if e.In {
			in = "in"
			text += ", masquerade " + e.Masquerade
		}
		if e.Why != "" {
			text += ": " + e.Why
		}
		line(in, text)
	}
	for _, n := range s.Notes {
		line("note", n)
	}
}

func printDoes(w io.Writer, p *answer.Plane, steps bool) {
	if p.Error != "" {
		fmt.Fprintln(w, "  does    unknown")
		return
	}
	for _, d := range p.Does {
		line := d.Action
		if d.Endpoint != "" {
			line += " to " + d.Endpoint
		}
		if d.Masqueraded {
			line += ", masqueraded"
		}
		fmt.Fprintf(w, "  does    %s (%.0f %%)\n", line, 100*d.Probability)
		if !steps {
			continue
		}
		for _, s := range d.Steps {
			fmt.Fprintf(w, "            %s\n", strings.TrimSpace(s.Object+": "+s.Detail))
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(w, "  note    %s\n", n)
	}
}

// PrintAudit writes the differences, and what is said of a plane that has none.
func PrintAudit(w io.Writer, a answer.Audit, clean string) {
	for _, p := range a.Planes {
		switch n := len(p.Differences); {
		case p.Error != "":
			fmt.Fprintf(w, "%s: unknown: %s\n", p.Plane, p.Error)
		case n == 0:
			fmt.Fprintf(w, "%s: %s\n", p.Plane, clean)
		case n == 1:
			fmt.Fprintf(w, "%s: 1 difference\n", p.Plane)
		default:
			fmt.Fprintf(w, "%s: %d differences\n", p.Plane, n)
		}
		for _, d := range p.Differences {
			fmt.Fprintf(w, "  %s\n", d.Text)
		}
	}
}
