// Package rig builds small networks out of network namespaces, for tests that
// send real packets through a real kernel.
//
//	            +-- c         10.244.1.2    fd00:244:1::2    client pod
//	node -------+-- e1        10.244.1.11   fd00:244:1::11   endpoint pods
//	 | eth0     +-- e2 ...    10.244.1.12   fd00:244:1::12
//	 | 192.168.77.10, fd00:77::10, and 192.168.77.11, fd00:77::11
//	 |
//	 up  br0 192.168.77.1, fd00:77::1; as the outside client it is
//	 |       203.0.113.7, fd00:203::7
//	 | eth0
//	 | 192.168.77.20, fd00:77::20
//	node2 ------+-- remote    10.244.2.11   fd00:244:2::11   a pod elsewhere
//
// The host named node is the one under test. Its default route leads to up,
// which does not forward: what it does not know it drops without a word. So a
// Service address that nobody serves is silent, as it should be, and still has
// a route, without which no packet would ever reach the node's FORWARD chain.
// The default routes of up and node2 lead to node: a Service address that they
// send to arrives at the node under test, as traffic from outside or from the
// pod of another node. What up and node2 say to each other bypasses it, and so
// do the replies of another node's endpoints to outside clients. The ranges of [ServiceRange4] and [ServiceRange6] are
// used by nobody.
//
// # What holds a rig together
//
// Namespaces have no name. Each is held by a file descriptor of this process,
// so rigs never collide, any number live side by side, and all are gone when
// the test ends or the process dies, however it dies. Nothing in a rig has a
// route to the machine's uplink: its only links are the ones drawn above.
//
// All hosts of a rig share one mount namespace with an empty /run, hence one
// xtables lock per rig: rigs do not wait for each other or for the machine.
//
// Conntrack forgets to track once the last rule that needs it is gone, and with
// it established NAT ends; the node's nft table "rig" keeps it on. ICMP errors
// are not rate limited, so that a refusal is never mistaken for silence.
//
// # Root or not
//
// [Main], called from TestMain, runs the tests in namespaces of their own,
// inside a new user namespace if the caller is not root.
//
// # Goroutines
//
// [Host.Do] enters the namespace with one thread. A goroutine that the function
// starts runs elsewhere, in the namespace of the process. Sockets stay where
// they were opened, whoever uses them. /proc/net belongs to the process: read
// /proc/thread-self/net instead; /proc/sys/net is right as it is.
package rig
