// Package network builds, out of network namespaces, a node with a client pod on
// it and a far side on which all endpoints live.
//
//	client 10.244.1.2 -- node 192.168.77.2 -- far 10.128.0.0/10, 10.192.0.0/11
//	                        |
//	                     api 192.168.77.1, the caller's namespace: API server
//
// The far side answers for every endpoint address, so that 10,000 Services of
// five endpoints need no 50,000 pods, and forwards nothing: an address that no
// rule of the node has translated ends there, without a word. Namespaces have no
// name and are held by file descriptors, so they end with the process, however it
// ends.
package network
