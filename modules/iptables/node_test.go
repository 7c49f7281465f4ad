package iptables

import (
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// openOn opens a plane on a host of a rig, on one of the back ends.
func openOn(tb testing.TB, h *rig.Host, backend string, f dataplane.Family) *Plane {
	tb.Helper()
	var p dataplane.Plane
	err := h.Do(func() (err error) {
		p, err = Mode(Options{Backend: backend}).Open(tb.Context(), f)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return p.(*Plane)
}
