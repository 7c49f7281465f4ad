package answer

import "github.com/portway/portway/modules/dataplane"

// Audit is the answer to how the kernel differs from what is wanted, or to what
// was repaired.
type Audit struct {
	Planes []PlaneAudit `json:"planes"`
}

// Clean tells whether all is known to be as it should be.
func (a Audit) Clean() bool {
	for _, p := range a.Planes {
		if len(p.Differences) > 0 || p.Error != "" {
			return false
		}
	}
	return len(a.Planes) > 0
}

// Failed tells whether something is not known of a plane.
func (a Audit) Failed() bool {
	for _, p := range a.Planes {
		if p.Error != "" {
			return true
		}
	}
	return len(a.Planes) == 0
}

// PlaneAudit is what one plane found.
type PlaneAudit struct {
	Plane       string       `json:"plane"`
	Differences []Difference `json:"differences"`
	Error       string       `json:"error,omitempty"`
}

// Difference is one way in which the kernel is not as it should be.
type Difference struct {
	// Object is the kernel object in the words of its tool.
	Object string `json:"object"`
	// Service and ServicePort are whom it serves; empty if it serves all.
	Service     string `json:"service,omitempty"`
	ServicePort string `json:"servicePort,omitempty"`
	// Want and Have are the two states; empty where there should be nothing,
	// or is nothing.
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
	// Text is all of it in a line.
	Text string `json:"text"`
}

// Differences are those of one plane; err is why they are not known.
func Differences(plane string, ds []dataplane.Difference, err error) PlaneAudit {
	a := PlaneAudit{Plane: plane, Differences: make([]Difference, 0, len(ds))}
	for _, d := range ds {
		one := Difference{Object: d.Object, Want: d.Want, Have: d.Have, Text: d.String()}
		if d.ServicePort != (dataplane.ServicePortName{}) {
			one.Service, one.ServicePort = d.ServicePort.Service().String(), d.ServicePort.String()
		}
		a.Differences = append(a.Differences, one)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}
