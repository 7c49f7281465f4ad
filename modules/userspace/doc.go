// Package userspace is the userspace mode: iptables rules redirect the flows of
// Services to listeners of this process, which relays them to endpoints
// (modules/relay).
//
// A [Plane] works for one address family. It translates a snapshot into the
// fewest rules that tell frontends and origins apart, and one listener for each
// set of endpoints that is in use. DESIGN.md lists what it owns.
//
// Clients lose their address and connections end with the process; in exchange
// the next endpoint is tried before a client notices that one is gone, and the
// log tells. It needs no more of a kernel than any iptables has.
package userspace
