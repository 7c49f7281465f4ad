// Package ctl asks the agent of this node, over its local socket, why a packet
// goes where it goes and whether the kernel is as it should be, and prints the
// answers for people.
package ctl
