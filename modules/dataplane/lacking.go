package dataplane

import "slices"

// Lacking is the verdict as a mode carries it out whose means lack capabilities:
// without KeepSource every flow is masqueraded, without ForwardSCTP those of SCTP
// are rejected.
func (v Verdict) Lacking(lacks []Capability) Verdict {
	if slices.Contains(lacks, KeepSource) && v.Action == Forward {
		v.masquerade = MasqueradeYes
	}
	if slices.Contains(lacks, ForwardSCTP) && v.Action == Forward && v.ServicePort.Name.Protocol == SCTP {
		v.Action, v.Pool, v.Reason = Reject, nil, "this mode forwards no SCTP"
	}
	return v
}
