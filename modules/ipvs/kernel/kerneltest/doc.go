// Package kerneltest has what package kernel has, in memory: for tests of the
// ipvs mode that must not need a kernel with IPVS, or that want calls to fail.
package kerneltest
