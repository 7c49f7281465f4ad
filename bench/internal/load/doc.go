// Package load fills an API server with Services and EndpointSlices, changes them,
// and knows what it has made. There is no kubelet and no pod: slices are written
// as they are wanted.
package load
