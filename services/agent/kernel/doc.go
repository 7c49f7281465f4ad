// Package kernel sets what kube-proxy sets of the machine besides its Services:
// the limits and timeouts of connection tracking, and what the kernel thinks of
// this process when memory runs out.
//
// None of it is worth dying for: what cannot be written is reported, and the
// rest goes on (kubernetes#24027).
package kernel
