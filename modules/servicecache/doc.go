// Package servicecache turns what the Kubernetes API says about Services into
// what one node must do: a [dataplane.Snapshot]. It is the only place that
// knows Kubernetes types and traffic policy; a dataplane only translates what
// was decided here.
//
// A [Cache] is the pure core: objects in, snapshots out, no goroutine, lock,
// clock or network. A [Source] feeds one from an API server and publishes a
// snapshot for each batch of changes, never before every first list is
// complete.
//
//	API server --list, watch--> Source --objects--> Cache --Snapshot--> Publish
//
// The price of a change is that of the Services that it concerns: those named
// by the object, and the rivals for an address that it takes or gives up. All
// other ServicePorts keep their pointers, and so do ServicePorts and Pools
// whose content comes out as it was.
package servicecache
