package ctl

import (
	"fmt"
	"io"
	"strings"
)

// PrintExplanation writes what should happen, what does, and whether they
// agree. It returns whether they do in every plane.
func PrintExplanation(w io.Writer, e Explanation, steps bool) (agree bool) {
	fmt.Fprintf(w, "%s\n", e.Flow)
	agree = len(e.Planes) > 0
	if !agree {
		fmt.Fprintln(w, "no plane serves this family")
	}
	for _, p := range e.Planes {
		fmt.Fprintf(w, "\n%s\n", p.Name)
		p.print(w, steps)
		agree = agree && p.Agree
	}
	return agree
}

func (p *Plane) print(w io.Writer, steps bool) {
	fmt.Fprintf(w, "  should  %s\n", p.should())
	for _, e := range p.Should.Endpoints {
		fmt.Fprintf(w, "            %s, masqueraded: %s\n", e.Address, e.Masquerade)
	}
	if p.Error != "" {
		fmt.Fprintf(w, "  does    unknown: %s\n", p.Error)
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
	if p.Agree {
		fmt.Fprintln(w, "  agree   yes")
	} else {
		fmt.Fprintf(w, "  agree   NO: %s\n", p.Disagreement)
	}
}

func (p *Plane) should() string {
	s := &p.Should
	line := s.Action
	if s.ServicePort != "" {
		line += ", " + s.ServicePort + " " + s.Frontend
	}
	return line + " (from " + s.Origin + ": " + s.Reason + ")"
}

// PrintAudit writes the differences. It returns whether there are none.
func PrintAudit(w io.Writer, a Audit) (clean bool) {
	clean = true
	for _, p := range a.Planes {
		switch {
		case p.Error != "":
			fmt.Fprintf(w, "%s: unknown: %s\n", p.Name, p.Error)
		case len(p.Differences) == 0:
			fmt.Fprintf(w, "%s: as it should be\n", p.Name)
			continue
		default:
			fmt.Fprintf(w, "%s: %d differences\n", p.Name, len(p.Differences))
		}
		clean = false
		for _, d := range p.Differences {
			fmt.Fprintf(w, "  %s\n", d)
		}
	}
	return clean
}
