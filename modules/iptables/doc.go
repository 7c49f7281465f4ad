// Package iptables is the iptables mode: a dataplane that makes Services work
// by rules of iptables, in either of its back ends, with the chains that
// operators know from kube-proxy.
//
// [Mode] is all that an agent needs. A plane translates each ServicePort by
// itself, with a pure function, into chains of its own, rules in chains that
// it shares with others, and entries of ipsets. Package program of
// modules/netfilter sums them up and writes what differs from the kernel, and
// nothing else. See DESIGN.md for the chains, the sets and the reasons.
package iptables
