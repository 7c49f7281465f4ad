package metrics

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/component-base/metrics/prometheus/slis"
)

// InstallSLIs serves /metrics/slis, on which every component of Kubernetes tells
// how its health checks came out (KEP-3466).
func InstallSLIs(mux *http.ServeMux) { slis.SLIMetricsWithReset{}.Install(mux) }

// ObserveHealth counts the outcome of a health check; kind is the path at which
// it was asked for.
func ObserveHealth(ctx context.Context, name, path string, ok bool) {
	status := slis.Error
	if ok {
		status = slis.Success
	}
	_ = slis.ObserveHealthcheck(ctx, name, strings.TrimPrefix(path, "/"), status) // never fails
}
