package servicecache

import "github.com/portway/portway/modules/dataplane"

// policy is all that decides what happens to the flows of one Service port in
// one family.
type policy struct {
	internalLocal, externalLocal bool
	// detects: pods are told from other sources.
	detects        bool
	masqueradeAll  bool
	dropEmptyLocal bool
	// cluster and local are the sets of endpoints; nil where nothing is left.
	// cluster is nil only if there is no usable endpoint anywhere.
	cluster, local *dataplane.Pool
}

// routes is the table of traffic policy: what happens to a flow by the kind of
// its frontend and by its origin.
func (p *policy) routes(k dataplane.Kind) [3]dataplane.Route {
	var r [3]dataplane.Route
	switch {
	case p.cluster == nil:
		for i := range r {
			r[i].Action = dataplane.Reject
		}
	case k == dataplane.ClusterIP:
		set, empty := p.cluster, dataplane.Reject
		if p.internalLocal {
			set = p.local
			if p.dropEmptyLocal {
				empty = dataplane.Drop
			}
		}
		r[dataplane.FromPod] = route(set, p.internal(dataplane.MasqueradeNo), empty)
		r[dataplane.FromNode] = route(set, p.internal(dataplane.MasqueradeEither), empty)
		r[dataplane.FromOutside] = route(set, p.internal(p.unlessPod()), empty)
	case p.externalLocal:
		// What comes from within the cluster is internal, and whoever is on
		// the load balancer's way drops, so that it retries elsewhere.
		r[dataplane.FromPod] = route(p.cluster, dataplane.MasqueradeRemote, dataplane.Reject)
		r[dataplane.FromNode] = route(p.cluster, dataplane.MasqueradeYes, dataplane.Reject)
		r[dataplane.FromOutside] = route(p.local, dataplane.MasqueradeNo, dataplane.Drop)
	default:
		for i := range r {
			r[i] = route(p.cluster, dataplane.MasqueradeYes, dataplane.Reject)
		}
	}
	return r
}

func (p *policy) internal(m dataplane.Masquerade) dataplane.Masquerade {
	if p.masqueradeAll {
		return dataplane.MasqueradeYes
	}
	return m
}

// unlessPod masquerades what is no pod, if that can be told.
func (p *policy) unlessPod() dataplane.Masquerade {
	if p.detects {
		return dataplane.MasqueradeYes
	}
	return dataplane.MasqueradeNo
}

func route(set *dataplane.Pool, m dataplane.Masquerade, empty dataplane.Action) dataplane.Route {
	if set == nil {
		return dataplane.Route{Action: empty}
	}
	return dataplane.Route{Action: dataplane.Forward, Pool: set, Masquerade: m}
}
