package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// WatchClient counts the requests to the API server, of which client-go tells
// one listener in the process. It is for main to call, once.
func (m *Metrics) WatchClient() {
	c := client{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total", Help: "Requests to the API server.",
		}, []string{"code", "method", "host"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_request_duration_seconds", Help: "Duration of requests to the API server.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
	}
	m.registry.MustRegister(c.results, c.latency)
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: c, RequestLatency: c})
}

// client has no path among its labels: paths name objects.
type client struct {
	results *prometheus.CounterVec
	latency *prometheus.HistogramVec
}

func (c client) Increment(_ context.Context, code, method, host string) {
	c.results.WithLabelValues(code, method, host).Inc()
}

func (c client) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	c.latency.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}
