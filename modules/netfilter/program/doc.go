// Package program keeps the rules and sets of many Services in the kernel, for
// any mode that is made of iptables rules. A mode says what one ServicePort
// becomes (a [Fragment]), what depends on the node (a [Frame]) and what is
// always the same (a [Layout]); a [Program] sums it up, compares the sum with
// the kernel and writes what differs.
//
// What it promises:
//
//  1. The kernel ends up with the sum of the fragments, whatever was there
//     before and in whatever order ServicePorts came and went.
//  2. The cost of a Sync follows what changed since the last one, in
//     translation, in memory that is touched and in rules that are written.
//  3. What is remembered of the kernel was confirmed by it. After an error all
//     is forgotten and read again.
//  4. A ServicePort that the kernel refuses is found, left out and reported; its
//     older version stays if it still works, and no other one suffers.
//  5. Between any two writes a flow ends as the old snapshot says or as the new
//     one, provided that fragments keep to the order of [Program.Sync].
//
// It decides nothing about Services and knows the words of no mode.
package program
