package servicecache

import (
	"fmt"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// dump spells all content of a snapshot; equal text is equal content.
func dump(s *dataplane.Snapshot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %+v\n", *s.Node())
	for sp := range s.ServicePorts() {
		b.WriteString(dumpPort(sp))
	}
	for a := range s.Ignored() {
		fmt.Fprintf(&b, "ignored %s\n", a)
	}
	for a := range s.ClusterIPs() {
		fmt.Fprintf(&b, "clusterIP %s\n", a)
	}
	for n, h := range s.HealthChecks() {
		fmt.Fprintf(&b, "health %s %+v\n", n, h)
	}
	return b.String()
}

func dumpPort(sp *dataplane.ServicePort) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s priority %d affinity %s scheduler %q serving %v\n", sp.Name, sp.Priority, sp.Affinity, sp.Scheduler, sp.Serving)
	for i, p := range sp.Pools {
		fmt.Fprintf(&b, "  pool %d %s %s %v\n", i, p.Family, p.Scope, p.Endpoints)
	}
	for _, f := range sp.Frontends {
		fmt.Fprintf(&b, "  %s %s sources %+v\n", f.Kind, f.Key(sp.Name.Protocol), f.Sources)
		for _, o := range dataplane.Origins() {
			r := f.Routes[o]
			fmt.Fprintf(&b, "    %s: %s pool %d masquerade %s\n", o, r.Action, slices.Index(sp.Pools, r.Pool), r.Masquerade)
		}
	}
	return b.String()
}
