package metrics

import "github.com/prometheus/client_golang/prometheus"

// family is the label that nearly all metrics have.
const family = "ip_family"

// factory makes metrics and registers them.
type factory struct {
	registry *prometheus.Registry
	prefix   string
}

func (f factory) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: f.prefix, Name: name, Help: help}, labels)
	f.registry.MustRegister(v)
	return v
}

func (f factory) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: f.prefix, Name: name, Help: help}, labels)
	f.registry.MustRegister(v)
	return v
}

func (f factory) histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: f.prefix, Name: name, Help: help, Buckets: buckets}, []string{family})
	f.registry.MustRegister(v)
	return v
}

func (f factory) duration(name, help string) *prometheus.HistogramVec {
	return f.histogram(name, help, prometheus.ExponentialBuckets(0.001, 2, 15))
}

// programmingBuckets are kube-proxy's, on which the service level objective of
// network programming latency is computed.
func programmingBuckets() []float64 {
	b := []float64{0.25, 0.5}
	b = append(b, prometheus.LinearBuckets(1, 1, 59)...)
	b = append(b, prometheus.LinearBuckets(60, 5, 12)...)
	return append(b, prometheus.LinearBuckets(120, 30, 7)...)
}
