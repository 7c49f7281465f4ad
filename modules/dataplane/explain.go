package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Explanation is what the kernel would do with a new flow.
type Explanation struct {
	// Outcomes are all ends that the flow may come to, each with its way.
	Outcomes []Outcome
	// Notes tell of memory that may bind a real client otherwise (affinity,
	// draining, conntrack) and of rules of others that could not be read.
	Notes []string
}

// Outcome is one end that a flow may come to.
type Outcome struct {
	Action Action
	// Endpoint is where a Forward ends.
	Endpoint netip.AddrPort
	// Masqueraded: the endpoint sees an address of this node as the source.
	Masqueraded bool
	// Probability is the share of flows that end here, from 0 to 1, by weight
	// alone: a scheduler that counts connections decides otherwise from moment
	// to moment.
	Probability float64
	Steps       []Step
}

// Step is one kernel object that the flow passes.
type Step struct {
	Object string // such as "nat chain KUBE-SERVICES rule 3"
	Detail string // the rule, set entry or server as its tool prints it
}

// Agrees compares what the kernel does with what must happen. It returns nil
// if every outcome is legal and, for a Forward, every endpoint of the pool can
// be reached; otherwise an error that names each disagreement.
func (v Verdict) Agrees(e Explanation) error {
	var wrong []string
	if len(e.Outcomes) == 0 {
		wrong = append(wrong, "the flow comes to no end")
	}
	reached := make(map[netip.AddrPort]bool)
	for _, o := range e.Outcomes {
		reached[o.Endpoint] = true
		if w := v.Disagreement(o); w != "" && !slices.Contains(wrong, w) {
			wrong = append(wrong, w)
		}
	}
	if v.Action == Forward {
		for _, ep := range v.Pool.Endpoints {
			if !reached[ep.Addr] {
				wrong = append(wrong, fmt.Sprintf("endpoint %s is never chosen", ep.Addr))
			}
		}
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("should %s, but: %s", v, strings.Join(wrong, "; "))
}

// Disagreement says how one outcome differs from what must happen, "" if it is
// legal.
func (v Verdict) Disagreement(o Outcome) string {
	if o.Action != v.Action {
		return "the kernel's answer is " + o.Action.String()
	}
	if v.Action != Forward {
		return ""
	}
	ep, ok := v.Endpoint(o.Endpoint)
	if !ok {
		return fmt.Sprintf("%s is no endpoint of the %s pool", o.Endpoint, v.Pool.Scope)
	}
	switch m := v.MasqueradeTo(ep); {
	case m == MasqueradeYes && !o.Masqueraded:
		return fmt.Sprintf("the flow to %s is not masqueraded", o.Endpoint)
	case m == MasqueradeNo && o.Masqueraded:
		return fmt.Sprintf("the flow to %s is masqueraded", o.Endpoint)
	}
	return ""
}
