// Package netfilter is what the planes share that write iptables rules and
// ipsets: rules as data, a writer, a reader, a walker that follows a packet
// through the rules, sets, and the choice of the iptables back end.
//
// # Rules
//
// A [Rule] is a comparable struct. [ParseRule] reads what iptables-save
// prints; [Rule.String] prints the same bytes. A rule with options that this
// package does not know keeps them as text, is marked opaque, and never
// equals a rule that a plane makes. Two habits keep rules equal to what the
// kernel gives back: addresses come from [MatchAddr], [MatchPrefix] or
// [MatchMask], which clear the bits outside of the mask, and comments come
// from [Comment].
//
//	netfilter.Rule{
//		Destination: netfilter.MatchAddr(vip),
//		Protocol:    netfilter.Is(dataplane.TCP),
//		DestPort:    netfilter.Port(80),
//		Comment:     netfilter.Comment("default/web:http"),
//		Target:      netfilter.Jump("KUBE-SVC-ABCDEFGH"),
//	}
//
// # The kernel
//
// [Kernel] is the kernel as a plane of one address family sees it: Save,
// Restore, Sets, ChangeSets. [Host] is the real one. [Dump] reads saved
// files. Package netfiltertest has one that lives in memory, refuses what the
// kernel refuses, and fails on demand.
//
// A [Transaction] changes one table, all or nothing. If it is refused, a
// [*RestoreError] names the line and the chain, as far as the tools tell:
// iptables-legacy does not say which rule the kernel refused, and iptables-nft
// may blame a built-in chain for what stands in a chain that it leads to. A
// plane that wants to isolate the culprit then halves the transaction.
//
// # When not to use it
//
// Not for nftables rule sets of one's own, which have better libraries, and
// not for single rules now and then, for which go-iptables is simpler.
package netfilter
