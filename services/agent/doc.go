// Package agent puts the parts of Portway together into the program that runs
// on each node: it watches the API server, gives snapshots to the planes of one
// mode, and tells how that goes. What a Service means is decided in
// servicecache, what becomes of it in the kernel in the plane; neither is done
// here.
package agent
