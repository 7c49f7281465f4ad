package dataplane

import "slices"

// Lacking is the verdict as a mode carries it out whose means lack capabilities:
// without KeepSource every flow is masqueraded.
func (v Verdict) Lacking(lacks []Capability) Verdict {
	if slices.Contains(lacks, KeepSource) && v.Action == Forward {
		v.masquerade = MasqueradeYes
	}
	return v
}
