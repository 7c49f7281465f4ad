// Package ctl asks why a packet goes where it goes and whether the kernel is as
// it should be: the agent of this node over its local socket, or what was saved
// of some node. It prints the answers for people.
package ctl
