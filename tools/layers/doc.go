// Package layers checks that imports go the ways that the design allows.
package layers
