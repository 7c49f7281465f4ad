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

// rule is what traffic policy says of the flows of one origin to frontends of
// one kind.
type rule struct {
	scope      dataplane.Scope
	masquerade dataplane.Masquerade
	// empty is the answer if nothing is left of the scope while there are
	// endpoints elsewhere.
	empty dataplane.Action
	why   string
}

// rule is the table of traffic policy.
func (p *policy) rule(k dataplane.Kind, o dataplane.Origin) rule {
	switch {
	case k == dataplane.ClusterIP && p.internalLocal:
		r := rule{dataplane.Local, p.internal(o), dataplane.Reject, "internalTrafficPolicy Local"}
		if p.dropEmptyLocal {
			r.empty = dataplane.Drop
		}
		return r
	case k == dataplane.ClusterIP:
		return rule{dataplane.Cluster, p.internal(o), dataplane.Reject, "internalTrafficPolicy Cluster"}
	case p.externalLocal && o == dataplane.FromOutside:
		// Whoever is on the load balancer's way drops, so that it retries
		// elsewhere.
		return rule{dataplane.Local, dataplane.MasqueradeNo, dataplane.Drop, "externalTrafficPolicy Local"}
	case p.externalLocal:
		r := rule{dataplane.Cluster, dataplane.MasqueradeYes, dataplane.Reject, "externalTrafficPolicy Local, which does not limit traffic from within the cluster"}
		if o == dataplane.FromPod {
			r.masquerade = dataplane.MasqueradeRemote
		}
		return r
	}
	return rule{dataplane.Cluster, dataplane.MasqueradeYes, dataplane.Reject, "externalTrafficPolicy Cluster"}
}

// routes says what happens to the flows to a kind of frontend, by their origin.
func (p *policy) routes(k dataplane.Kind) [3]dataplane.Route {
	var all [3]dataplane.Route
	for _, o := range dataplane.Origins() {
		all[o] = p.route(p.rule(k, o))
	}
	return all
}

func (p *policy) route(r rule) dataplane.Route {
	set := p.cluster
	if r.scope == dataplane.Local {
		set = p.local
	}
	switch {
	case p.cluster == nil:
		return dataplane.Route{Action: dataplane.Reject}
	case set == nil:
		return dataplane.Route{Action: r.empty}
	}
	return dataplane.Route{Action: dataplane.Forward, Pool: set, Masquerade: r.masquerade}
}

// internal tells whether flows to a ClusterIP are masqueraded. What is no pod
// is, if that can be told.
func (p *policy) internal(o dataplane.Origin) dataplane.Masquerade {
	switch {
	case p.masqueradeAll, o == dataplane.FromOutside && p.detects:
		return dataplane.MasqueradeYes
	case o == dataplane.FromNode:
		return dataplane.MasqueradeEither
	}
	return dataplane.MasqueradeNo
}
