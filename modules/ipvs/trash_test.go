package ipvs

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// The virtual server that was deleted last is the one to add first; what was never
// there comes in the end. TestScale shows what that saves.
func TestLostServersAreAddedLastFirst(t *testing.T) {
	at := func(addr string) kernel.Key {
		return kernel.Key{Protocol: dataplane.TCP, Addr: netip.MustParseAddr(addr), Port: 80}
	}
	a, b, c, kept, fresh := at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3"), at("10.0.0.4"), at("10.0.0.5")
	before := map[kernel.Key]*have{a: {place: 2}, b: {place: 4}, c: {place: 1}, kept: {place: 3}}
	s := &pass{lost: lostOf(before, map[kernel.Key]*have{kept: {place: 1}})}
	if got, want := s.inOrderOfTrash([]kernel.Key{a, b, c, kept, fresh}), []kernel.Key{b, a, c, kept, fresh}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
