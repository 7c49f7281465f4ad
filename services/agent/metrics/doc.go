// Package metrics counts what the agent does, under the names that kube-proxy
// uses where there is one, so that dashboards and alerts go on working. No
// label ever names a Service or an endpoint.
package metrics
