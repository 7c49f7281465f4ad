// Package proxy runs one Service proxy, Portway or kube-proxy, on a node of the
// benchmark, and reads what it costs and what it has made in the kernel. Both get
// the same configuration file.
package proxy
