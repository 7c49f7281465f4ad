// Package lab is the module of the lab: kind clusters as code, with and without
// a container registry. There is nothing to import; cmd/lab is the program, and
// README.md tells how to use it.
//
// It is for trying Portway and for its end-to-end tests and benchmarks. It is
// the only module, beside those, that may build k8s.io/kubernetes.
package lab
