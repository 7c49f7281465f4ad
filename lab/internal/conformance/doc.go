// Package conformance compares a run of upstream's end-to-end tests with what a
// lab must show of them: specs.yaml lists every spec about Services that
// kube-proxy passes, which of them prove something about a proxy, and why the
// others of their group are left out.
package conformance
