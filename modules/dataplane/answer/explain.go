package answer

import "github.com/portway/portway/modules/dataplane"

// Explanation is the answer to what becomes of a flow.
type Explanation struct {
	Flow   string  `json:"flow"`
	Planes []Plane `json:"planes"`
}

// Agree tells whether every plane does what it should; false if there is none.
func (e Explanation) Agree() bool {
	for _, p := range e.Planes {
		if !p.Agree {
			return false
		}
	}
	return len(e.Planes) > 0
}

// Plane is what should become of a flow, what one plane does with it, and
// whether the two agree.
type Plane struct {
	Plane  string    `json:"plane"`
	Should Should    `json:"should"`
	Does   []Outcome `json:"does"`
	Notes  []string  `json:"notes,omitempty"`
	Agree  bool      `json:"agree"`
	// Disagreement says in a sentence how they do not agree.
	Disagreement string `json:"disagreement,omitempty"`
	// Error says why it is not known what the plane does.
	Error string `json:"error,omitempty"`
}

// Should is what must become of a flow, and why.
type Should struct {
	Action      string     `json:"action"`
	Origin      string     `json:"origin"`
	Reason      string     `json:"reason"`
	Service     string     `json:"service,omitempty"`
	ServicePort string     `json:"servicePort,omitempty"`
	Frontend    *Frontend  `json:"frontend,omitempty"`
	Policy      string     `json:"policy,omitempty"`
	Choice      string     `json:"choice,omitempty"`
	Endpoints   []Endpoint `json:"endpoints,omitempty"`
	Notes       []string   `json:"notes,omitempty"`
}

// Frontend is the address that a flow meant.
type Frontend struct {
	Kind    string `json:"kind"`
	Address string `json:"address"`
}

// Endpoint is an endpoint of the port that a flow meant.
type Endpoint struct {
	Address string `json:"address"`
	// In: the flow may go there. Masquerade is then whether it gets an address
	// of the node as its source: yes, no or either.
	In         bool   `json:"in"`
	Masquerade string `json:"masquerade,omitempty"`
	// Why, Slice and what follows are not known to every asker.
	Why         string `json:"why,omitempty"`
	Slice       string `json:"endpointSlice,omitempty"`
	Ready       bool   `json:"ready"`
	Serving     bool   `json:"serving"`
	Terminating bool   `json:"terminating"`
	Local       bool   `json:"local"`
}

// Outcome is one end that a flow may come to in the kernel.
type Outcome struct {
	Action      string `json:"action"`
	Endpoint    string `json:"endpoint,omitempty"`
	Masqueraded bool   `json:"masqueraded"`
	// Probability is the share of flows that end here, from 0 to 1.
	Probability float64 `json:"probability"`
	Steps       []Step  `json:"steps,omitempty"`
}

// Step is one kernel object on the way.
type Step struct {
	Object string `json:"object"`
	Detail string `json:"detail,omitempty"`
}

// Explain puts what a plane says beside what should be. Lacks are the
// capabilities that its mode does not have; why may be nil if nobody knows.
func Explain(p dataplane.PlaneExplanation, lacks []dataplane.Capability, why *dataplane.Reasons) Plane {
	v := p.Verdict.Lacking(lacks)
	e := Plane{Plane: p.Plane, Should: should(v, why), Notes: p.Explanation.Notes}
	if p.Err != nil {
		e.Error = p.Err.Error()
		return e
	}
	for _, o := range p.Explanation.Outcomes {
		e.Does = append(e.Does, outcome(o))
	}
	if err := v.Agrees(p.Explanation); err != nil {
		e.Disagreement = err.Error()
	} else {
		e.Agree = true
	}
	return e
}

func outcome(o dataplane.Outcome) Outcome {
	out := Outcome{Action: o.Action.String(), Masqueraded: o.Masqueraded, Probability: o.Probability}
	if o.Endpoint.IsValid() {
		out.Endpoint = o.Endpoint.String()
	}
	for _, s := range o.Steps {
		out.Steps = append(out.Steps, Step(s))
	}
	return out
}

func should(v dataplane.Verdict, why *dataplane.Reasons) Should {
	s := Should{Action: v.Action.String(), Origin: v.Origin.String(), Reason: v.Reason}
	if v.ServicePort == nil {
		return s
	}
	s.Service, s.ServicePort = v.ServicePort.Name.Service().String(), v.ServicePort.Name.String()
	s.Frontend = &Frontend{v.Frontend.Kind.String(), v.Frontend.Key(v.ServicePort.Name.Protocol).String()}
	if why == nil {
		s.chosen(v)
		return s
	}
	s.Policy, s.Choice, s.Notes = why.Policy, why.Choice, why.Notes
	for _, c := range why.Endpoints {
		e := Endpoint{
			Address: c.Addr.String(), Why: c.Why, Slice: c.Slice,
			Ready: c.Ready, Serving: c.Serving, Terminating: c.Terminating, Local: c.Local,
		}
		// A rival for the same address is in the pool by another's merit.
		if ep, ok := v.Endpoint(c.Addr); ok && c.In && v.Action == dataplane.Forward {
			e.In, e.Masquerade = true, v.MasqueradeTo(ep).String()
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// chosen lists the endpoints of which nothing is known but that they were
// chosen.
func (s *Should) chosen(v dataplane.Verdict) {
	if v.Action != dataplane.Forward {
		return
	}
	for _, e := range v.Pool.Endpoints {
		s.Endpoints = append(s.Endpoints, Endpoint{
			Address: e.Addr.String(), In: true, Masquerade: v.MasqueradeTo(e).String(), Local: e.Local,
		})
	}
}
