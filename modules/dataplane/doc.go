// Package dataplane is the contract between what a Kubernetes Service means
// and the means that make it work on a node.
//
// A source (modules/servicecache) turns the Kubernetes API into a [Snapshot]:
// everything one node must forward, with every decision already taken. A
// [Plane] translates a Snapshot into the kernel objects of its [Mode], reads
// them back, and follows a packet through them. A [Reconciler] feeds planes
// with snapshots. [Snapshot.Decide] says what must happen to a flow; it is the
// oracle against which every mode is tested and the "should" of an
// explanation.
//
//	source --Snapshot--> Reconciler --Sync--> planes --> kernel
//
// The package depends on the standard library only and knows neither
// Kubernetes types nor any kernel interface.
package dataplane
