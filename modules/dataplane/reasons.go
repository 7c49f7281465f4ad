package dataplane

import "net/netip"

// Reasons say why a [Verdict] is as it is: what traffic policy wants, and what
// became of each endpoint. Whoever made the Snapshot knows them.
type Reasons struct {
	// Policy is the traffic policy that applies to the flow.
	Policy string
	// Choice is which endpoints the policy wants, in words.
	Choice string
	// Endpoints are all of the port and family, sorted by address.
	Endpoints []Considered
	// Notes tell what else of the Service and its EndpointSlices does not
	// count, and why.
	Notes []string
}

// Considered is an endpoint of a Service port that may have been chosen or not.
type Considered struct {
	Addr                               netip.AddrPort
	Slice                              string // the name of its EndpointSlice
	Ready, Serving, Terminating, Local bool
	// In: it belongs to the set that the policy chooses for the flow. Why says
	// so, or what stands against it.
	In  bool
	Why string
}
