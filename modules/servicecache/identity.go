package servicecache

import (
	"slices"

	"github.com/portway/portway/modules/dataplane"
)

// keepIdentity puts into a new version of a ServicePort every part of the old
// one that is equal, and returns the old one itself if all of it is: whoever
// compares pointers then sees just what changed.
func keepIdentity(old, now *dataplane.ServicePort) *dataplane.ServicePort {
	for i, p := range now.Pools {
		if j := slices.IndexFunc(old.Pools, func(o *dataplane.Pool) bool { return equalPools(o, p) }); j >= 0 {
			replacePool(now, p, old.Pools[j])
			now.Pools[i] = old.Pools[j]
		}
	}
	for i, f := range now.Frontends {
		if j := slices.IndexFunc(old.Frontends, func(o *dataplane.Frontend) bool { return equalFrontends(o, f) }); j >= 0 {
			now.Frontends[i] = old.Frontends[j]
		}
	}
	if slices.Equal(old.Serving, now.Serving) {
		now.Serving = old.Serving
	}
	if equalPorts(old, now) {
		return old
	}
	return now
}

func replacePool(sp *dataplane.ServicePort, from, to *dataplane.Pool) {
	for _, f := range sp.Frontends {
		for o := range f.Routes {
			if f.Routes[o].Pool == from {
				f.Routes[o].Pool = to
			}
		}
	}
}

func equalPools(a, b *dataplane.Pool) bool {
	return a.Family == b.Family && a.Scope == b.Scope && slices.Equal(a.Endpoints, b.Endpoints)
}

// equalFrontends compares pools by identity.
func equalFrontends(a, b *dataplane.Frontend) bool {
	return a.Kind == b.Kind && a.Family == b.Family && a.Addr == b.Addr && a.Port == b.Port &&
		a.Routes == b.Routes && equalSources(a.Sources, b.Sources)
}

func equalSources(a, b *dataplane.SourceRanges) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Node == b.Node && slices.Equal(a.Prefixes, b.Prefixes)
}

// equalPorts compares pools and frontends by identity.
func equalPorts(a, b *dataplane.ServicePort) bool {
	return a.Name == b.Name && a.Priority == b.Priority && a.Affinity == b.Affinity && a.Scheduler == b.Scheduler &&
		slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Frontends, b.Frontends) && slices.Equal(a.Serving, b.Serving)
}
