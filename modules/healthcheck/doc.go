// Package healthcheck answers those who ask over HTTP whether to send traffic
// here: load balancers about one Service ([Servers], the healthCheckNodePorts)
// and about the node ([Proxy], /healthz), and the kubelet about this process
// ([Proxy], /livez).
//
// It knows no Kubernetes types, logs nothing and keeps no metrics; what there
// is to say goes to the functions that the caller gives.
package healthcheck
