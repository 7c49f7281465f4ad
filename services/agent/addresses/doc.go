// Package addresses watches the addresses that this machine holds.
//
// The kernel tells when something changes; what there is now is then listed
// anew. A list that fails, or that a change interrupted half-way, is no
// evidence that an address is gone: the last good one stays (kubernetes#129146).
package addresses
