package conntrack

import (
	"context"

	"github.com/portway/portway/modules/dataplane"
)

// Watch returns the plane with the Cleaner attached: each Sync tells it what is
// about to change, and what did.
func (c *Cleaner) Watch(p dataplane.Plane) dataplane.Plane { return watched{p, c} }

type watched struct {
	dataplane.Plane
	cleaner *Cleaner
}

func (w watched) Sync(ctx context.Context, r dataplane.SyncRequest) (dataplane.Report, error) {
	w.cleaner.begin(r.Want)
	report, err := w.Plane.Sync(ctx, r)
	w.cleaner.end(r.Want, report, err)
	return report, err
}
