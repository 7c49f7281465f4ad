// Package apisim is a small Kubernetes API server for tests: it lists, watches
// and gets objects over HTTP as the real one does, resource versions,
// selectors, bookmarks, streamed lists and 410 Gone included, and it can be
// made to misbehave: drop watches, forget its history, hold a list back, fail,
// not know a resource.
//
// It keeps objects of every type in client-go's scheme. It validates and
// defaults nothing, and it has no subresources, patches or authorization.
package apisim
