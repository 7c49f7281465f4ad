// Package ipvs is the ipvs mode: a dataplane that makes Services work by the
// kernel's own load balancer, IPVS, with a fixed handful of iptables rules
// beside it.
package ipvs
