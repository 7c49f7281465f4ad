package dataplanetest

import (
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Serve lets the hosts of a rig that Services may have as endpoints answer.
func Serve(t rig.TB, r *rig.Rig) {
	t.Helper()
	for _, host := range backends {
		r.Host(host).ServeAll(t, targetPorts...)
	}
}

// Misled sends new flows at the node of a rig on which somebody runs a mode for
// both families, and tells of those that end where the snapshot does not say.
func Misled(t rig.TB, r *rig.Rig, mode dataplane.Mode, want *dataplane.Snapshot, shots []Shot) []error {
	t.Helper()
	b := &bed{t: t, cfg: Config{Mode: mode}, rig: r, watch: r.Node2.Watch(t)}
	var wrong []error
	for _, m := range b.misled(shots, want) {
		wrong = append(wrong, m.err)
	}
	return wrong
}
