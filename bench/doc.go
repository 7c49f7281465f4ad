// Package bench is the module of the benchmark: Portway and stock kube-proxy side
// by side, in one run, on one API server and one kernel. There is nothing to
// import; cmd/bench is the program, and README.md tells how to use it.
package bench
