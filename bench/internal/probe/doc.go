// Package probe sends the packets of the benchmark and says when they arrived. It
// knows nothing of proxies, so that each is measured by the same means: what a
// client sees.
package probe
