package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/servicecache"
)

// changes are the metrics about what was asked for: objects as the API sends
// them, as kube-proxy counts them, and of what is not in force yet the Service
// ports, from one published snapshot to the next.
type changes struct {
	services, endpoints               prometheus.Counter
	pendingServices, pendingEndpoints prometheus.Gauge
	lastQueued, noLocal               *prometheus.GaugeVec

	mu       sync.Mutex
	families []dataplane.Family
	last     *dataplane.Snapshot
	waiting  map[string]bool // families in which a change is not in force yet
}

func newChanges(f factory) changes {
	return changes{
		services:         f.counter("sync_proxy_rules_service_changes_total", "Services that the API sent, changed or deleted.").WithLabelValues(),
		endpoints:        f.counter("sync_proxy_rules_endpoint_changes_total", "EndpointSlices that the API sent, changed or deleted.").WithLabelValues(),
		pendingServices:  f.gauge("sync_proxy_rules_service_changes_pending", "Service ports that changed in other than their endpoints, which is not in force yet.").WithLabelValues(),
		pendingEndpoints: f.gauge("sync_proxy_rules_endpoint_changes_pending", "Service ports whose endpoints changed, which is not in force yet.").WithLabelValues(),
		lastQueued:       f.gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a Sync was last asked for.", family),
		noLocal:          f.gauge("sync_proxy_rules_no_local_endpoints_total", "Service ports with a Local traffic policy that have endpoints, but none on this node.", "traffic_policy", family),
		waiting:          make(map[string]bool),
	}
}

// Came counts objects that the API sent.
func (m *changes) Came(kind string, objects int) {
	switch kind {
	case servicecache.Services:
		m.services.Add(float64(objects))
	case servicecache.EndpointSlices:
		m.endpoints.Add(float64(objects))
	}
}

// Published counts what a new snapshot changes.
func (m *changes) Published(s *dataplane.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.families {
		m.lastQueued.WithLabelValues(f.String()).Set(seconds(time.Now()))
		m.waiting[f.String()] = true
	}
	for c := range s.ChangesSince(m.last) {
		pending := m.pendingServices
		if endpointsDiffer(c) {
			pending = m.pendingEndpoints
		}
		pending.Inc()
		m.countLocal(c.Old, -1)
		m.countLocal(c.New, 1)
	}
	m.last = s
}

// applied notes that a family was brought to a snapshot.
func (m *changes) applied(f string, s *dataplane.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s != m.last {
		return
	}
	delete(m.waiting, f)
	if len(m.waiting) == 0 {
		m.pendingServices.Set(0)
		m.pendingEndpoints.Set(0)
	}
}

func endpointsDiffer(c dataplane.Change) bool {
	if c.Old == nil || c.New == nil {
		return false
	}
	return !slices.Equal(c.Old.Serving, c.New.Serving) || !slices.EqualFunc(c.Old.Pools, c.New.Pools, func(a, b *dataplane.Pool) bool {
		return a == b || a.Family == b.Family && a.Scope == b.Scope && slices.Equal(a.Endpoints, b.Endpoints)
	})
}

// countLocal adds a Service port to the families and policies in which it has
// endpoints elsewhere and refuses here.
func (m *changes) countLocal(sp *dataplane.ServicePort, by float64) {
	if sp == nil {
		return
	}
	seen := make(map[[2]string]bool)
	for _, f := range sp.Frontends {
		if f.Routes[dataplane.FromOutside].Action == dataplane.Forward || !serves(sp, f.Family) {
			continue
		}
		policy := "external"
		if f.Kind == dataplane.ClusterIP {
			policy = "internal"
		}
		if k := [2]string{policy, f.Family.String()}; !seen[k] {
			seen[k] = true
			m.noLocal.WithLabelValues(k[0], k[1]).Add(by)
		}
	}
}

func serves(sp *dataplane.ServicePort, f dataplane.Family) bool {
	for _, a := range sp.Serving {
		if dataplane.FamilyOf(a.Addr()) == f {
			return true
		}
	}
	return false
}
