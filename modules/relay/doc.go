// Package relay carries TCP connections and UDP exchanges to the endpoints of
// Services in user space.
//
// A [Relay] owns listeners. Each [Listener] has a [Route], which is a set of
// endpoints and an affinity; a new client gets the next endpoint in turn, and
// if that one does not answer, another one, before the client notices. The
// userspace mode is made of such listeners and of rules that lead to them, and
// [Loopback] is a plane of them: NodePorts at 127.0.0.1 and ::1, in any mode.
//
// The package decides nothing about Services: which endpoints a flow may reach
// stands in the snapshot. Unlike other planes, it has goroutines and clocks of
// its own, because its means are sockets.
//
// # When not to use it
//
// An endpoint sees an address of this node as its client, connections end with
// the process, and every byte costs this node's processors twice. Where the
// kernel can translate, it is better at it.
package relay
