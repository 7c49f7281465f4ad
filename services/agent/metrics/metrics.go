package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
)

// Metrics are all metrics of one agent.
type Metrics struct {
	registry *prometheus.Registry

	sync, fullSync, partialSync, programming *prometheus.HistogramVec
	lastSync                                 *prometheus.GaugeVec
	writes, repaired                         *prometheus.CounterVec
	failedPorts                              *prometheus.GaugeVec
	rules, rulesWritten, objects             *prometheus.GaugeVec
	restoreFailures, partialFailures         *prometheus.CounterVec

	changes
	packets packets
	leftOut map[string]int // Service ports, by plane; under changes.mu

	healthz, livez *prometheus.CounterVec
	cleaning       *prometheus.HistogramVec
	cleaned        *prometheus.CounterVec
	mode, fallback *prometheus.GaugeVec
	goOn           *prometheus.GaugeVec
}

// New returns metrics of which nothing has been counted yet. unapplied tells
// since when an accepted change has been waiting.
func New(version string, unapplied func() (time.Time, bool)) *Metrics {
	r := prometheus.NewRegistry()
	f, own := factory{r, "kubeproxy"}, factory{r, "portway"}
	m := &Metrics{
		registry:        r,
		leftOut:         make(map[string]int),
		sync:            f.duration("sync_proxy_rules_duration_seconds", "Duration of a Sync."),
		fullSync:        f.duration("sync_full_proxy_rules_duration_seconds", "Duration of a Sync that compared with the kernel."),
		partialSync:     f.duration("sync_partial_proxy_rules_duration_seconds", "Duration of a Sync that applied changes only."),
		programming:     f.histogram("network_programming_duration_seconds", "Time from a change of endpoints to its being in force.", programmingBuckets()),
		lastSync:        f.gauge("sync_proxy_rules_last_timestamp_seconds", "When a Sync last succeeded.", family),
		restoreFailures: f.counter("sync_proxy_rules_iptables_restore_failures_total", "Syncs of which the kernel refused a part or all, whatever the mode.", family),
		partialFailures: f.counter("sync_proxy_rules_iptables_partial_restore_failures_total", "Of those, the Syncs that applied changes only; the next one compares with the kernel.", family),
		rules:           f.gauge("sync_proxy_rules_iptables_total", "Rules in chains of ours.", "table", family),
		rulesWritten:    f.gauge("sync_proxy_rules_iptables_last", "Rules that the last Sync wrote.", "table", family),
		changes:         newChanges(f),
		packets:         newPackets(f),
		healthz:         f.counter("proxy_healthz_total", "Answers of /healthz.", "code"),
		livez:           f.counter("proxy_livez_total", "Answers of /livez.", "code"),
		cleaning:        f.duration("conntrack_reconciler_sync_duration_seconds", "Duration of a search for stale UDP flows."),
		cleaned:         f.counter("conntrack_reconciler_deleted_entries_total", "Stale UDP flows that were deleted.", family),
		writes:          own.counter("sync_writes_total", "Changes written to the kernel, in units of the mode.", family),
		repaired:        own.counter("repaired_differences_total", "Differences that somebody else had made in the kernel and that were mended, by the kind of object.", "object", family),
		failedPorts:     own.gauge("failed_service_ports", "Service ports that cannot be programmed at present.", family),
		objects:         own.gauge("kernel_objects", "Objects in the kernel other than rules, such as virtual servers, by kind.", "kind", family),
		mode:            own.gauge("mode", "1 for the proxy mode in use.", "mode"),
		goOn:            own.gauge("leftover_connections", "Connections that go on through what another proxy mode left in the kernel, which stays for them.", "mode", family),
		fallback:        own.gauge("mode_fallback", "1 if another mode than the one that was asked for is in use.", "wanted", "mode"),
	}
	own.gauge("build_info", "1 for the version that runs.", "version").WithLabelValues(version).Set(1)
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: own.prefix, Name: "oldest_unapplied_change_seconds",
			Help: "Age of the oldest change that was accepted and is not in force yet.",
		}, func() float64 {
			if since, waiting := unapplied(); waiting {
				return time.Since(since).Seconds()
			}
			return 0
		}),
	)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Gatherer gives access to what has been counted.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Serving notes the families that are served. What is counted for them is 0
// from then on, and not absent until it happens.
func (m *Metrics) Serving(families []dataplane.Family) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.families = families
	for _, f := range families {
		for _, c := range []*prometheus.CounterVec{m.writes, m.restoreFailures, m.partialFailures, m.cleaned} {
			c.WithLabelValues(f.String())
		}
		m.failedPorts.WithLabelValues(f.String())
		m.noLocal.WithLabelValues("internal", f.String())
		m.noLocal.WithLabelValues("external", f.String())
	}
}

// Synced counts a Sync.
func (m *Metrics) Synced(res dataplane.SyncResult) {
	f := res.Plane.Family.String()
	kind := m.partialSync
	if res.Report.Full {
		kind = m.fullSync
	}
	m.sync.WithLabelValues(f).Observe(res.Duration.Seconds())
	kind.WithLabelValues(f).Observe(res.Duration.Seconds())
	m.writes.WithLabelValues(f).Add(float64(res.Report.Writes))
	for _, d := range res.Report.Repaired {
		m.repaired.WithLabelValues(kindOf(d.Object), f).Inc()
	}
	if m.refused(res) {
		m.restoreFailures.WithLabelValues(f).Inc()
		if !res.Report.Full {
			m.partialFailures.WithLabelValues(f).Inc()
		}
	}
	if res.Err != nil {
		return
	}
	end := res.Start.Add(res.Duration)
	m.lastSync.WithLabelValues(f).Set(seconds(end))
	m.failedPorts.WithLabelValues(f).Set(float64(len(res.Report.Failed)))
	for kind, n := range res.Report.Objects {
		m.hold(kind, f, n)
	}
	m.applied(f, res.Want)
	for _, t := range res.Triggers {
		// The control plane's clock may be ahead of ours.
		m.programming.WithLabelValues(f).Observe(max(0, end.Sub(t).Seconds()))
	}
}

// refused tells whether the kernel refused something in a Sync. A Service port
// that is left out stays in each report; it was refused when it came to it.
func (m *Metrics) refused(res dataplane.SyncResult) bool {
	if res.Err != nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.leftOut[res.Plane.Name]
	m.leftOut[res.Plane.Name] = len(res.Report.Failed)
	return len(res.Report.Failed) > before
}

// kindOf returns what kind of object something is, without its name: "nat
// chain", "ipset", "virtual server". Names would make a metric without bound.
func kindOf(object string) string {
	words := strings.Fields(object)
	n := 0
	for n < len(words) && n < 2 && strings.Trim(words[n], "abcdefghijklmnopqrstuvwxyz") == "" {
		n++
	}
	return strings.Join(words[:n], " ")
}

// Packets adds what a Sync has read of the kernel's counters.
func (m *Metrics) Packets(res dataplane.SyncResult) { m.packets.add(res) }

// hold tells how many objects of a kind the plane holds in the kernel: for rules,
// which kube-proxy counts, the kind is their table.
func (m *Metrics) hold(kind, f string, n dataplane.ObjectCount) {
	switch kind {
	case "raw", "mangle", "nat", "filter":
		m.rules.WithLabelValues(kind, f).Set(float64(n.Held))
		m.rulesWritten.WithLabelValues(kind, f).Set(float64(n.Written))
	default:
		m.objects.WithLabelValues(kind, f).Set(float64(n.Held))
	}
}

// Cleaned counts a search for stale flows.
func (m *Metrics) Cleaned(p conntrack.Pass) {
	m.cleaning.WithLabelValues(p.Family.String()).Observe(p.Duration.Seconds())
	m.cleaned.WithLabelValues(p.Family.String()).Add(float64(p.Deleted))
}

// Answered counts an answer of /healthz or /livez.
func (m *Metrics) Answered(path string, code int) {
	c := m.healthz
	if path == "/livez" {
		c = m.livez
	}
	c.WithLabelValues(strconv.Itoa(code)).Inc()
}

// Mode notes the mode in use, and the one that was wanted if it is another.
func (m *Metrics) Mode(wanted, mode string) {
	m.mode.WithLabelValues(mode).Set(1)
	if wanted != "" && wanted != mode {
		m.fallback.WithLabelValues(wanted, mode).Set(1)
	}
}

// GoOn notes how many connections go on through what another mode left.
func (m *Metrics) GoOn(mode string, f dataplane.Family, connections int) {
	m.goOn.WithLabelValues(mode, f.String()).Set(float64(connections))
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
