package userspace

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
	"github.com/portway/portway/modules/relay"
)

// reader explains and audits: rules and sets of a kernel, and listeners.
type reader struct {
	family  dataplane.Family
	program *program.Program
	local   func() (func(netip.Addr) bool, error)
	// table is what listens, with what is remembered of some clients.
	table func(clients func(netip.Addr) bool) []relay.Listening
}

func newReader(f dataplane.Family, k netfilter.Kernel, local func() (func(netip.Addr) bool, error), table func(func(netip.Addr) bool) []relay.Listening) reader {
	return reader{family: f, program: program.New(layout(f), k, 0), local: local, table: table}
}

// Saved is a plane of which only what was saved is left. It can be explained and
// audited.
type Saved struct{ reader }

// NewSaved returns the plane of a family, of the rules and sets that a kernel
// had, the addresses that the node had, and what listened there. On loopback that
// is for another plane.
func NewSaved(f dataplane.Family, k netfilter.Kernel, isLocal func(netip.Addr) bool, table []relay.Listening) *Saved {
	var mine []relay.Listening
	for _, l := range table {
		if a := l.Addr.Addr(); dataplane.FamilyOf(a) == f && !a.IsLoopback() {
			mine = append(mine, l)
		}
	}
	return &Saved{newReader(f, k,
		func() (func(netip.Addr) bool, error) { return isLocal, nil },
		func(func(netip.Addr) bool) []relay.Listening { return mine })}
}
