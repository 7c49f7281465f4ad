// Package dataplanetest holds every mode to the contract of package dataplane,
// on a real kernel and with real packets.
//
// [RunLaws] is one call that a mode's test makes. It generates Services, lets
// the mode's planes program them on the node of a network rig, and checks
//
//  1. after a Sync the audit finds nothing,
//  2. a second Sync writes nothing,
//  3. whatever the snapshots in between, the kernel ends in the same state,
//  4. for every flow, what Explain reads from the kernel and where a real packet
//     ends are what Snapshot.Decide says,
//  5. while kernel calls fail no access is widened, and afterwards all is right,
//  6. cleaning up leaves what belongs to others as it was,
//  7. a mode lacks just the capabilities that it declares,
//  8. a process killed at any point leaves every flow as it was or as it is to
//     be, and the next one gets things right.
//
// Some more laws are about what else is on a node: a firewall that forwards nothing
// by default, other programs' bits of the packet mark, packets that connection
// tracking calls invalid, source ports that many clients share.
//
// [RunScale] is about many: each of 1,000 clients keeps its endpoint, an audit of
// 1,000 Services and a repair are done within seconds.
//
// [RunScenarios] plays hand-written scenarios: a txtar file of Services, and who
// reaches whom. A failing law prints the Services that it failed with in that
// form, so that it can become a scenario, after how to repeat it (its seed); with
// PORTWAY_TEST_FAILURES, a folder, it also writes them there, made small.
//
// Variables of the environment fit all to a kernel: PORTWAY_TEST_IPTABLES lists the
// iptables back ends to test with, PORTWAY_TEST_FAMILIES the families,
// PORTWAY_TEST_EXPLAINS bounds how many flows of a state are explained, and
// PORTWAY_TEST_SERVICES says how many Services are many (up to 10,000).
//
// [Service] and [State] are the small model behind both. It decides traffic
// policies a second time, on its own, in the fewest words possible: it is the
// part of the specification that snapshots are made by.
package dataplanetest
