package conntrack_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
)

// What leads to a relay of this node is right as long as that listens, although
// no endpoint has such an address; what leads to an earlier process's is not.
func TestRelayedFlowsAreSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, earlier := netip.MustParseAddrPort("192.0.2.10:24817"), netip.MustParseAddrPort("192.0.2.10:20001")
		table := &memory{entries: []conntrack.Entry{flow(vip4, here), flow(vip4, earlier), flow(vip4, e2), flow(vip4, vip4)}}
		c := conntrack.NewCleaner(table, dataplane.IPv4, func(conntrack.Pass) {})
		c.Spare(func(p dataplane.Protocol, a netip.AddrPort) bool { return p == dataplane.UDP && a == here })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go c.Run(ctx)
		done := &plane{sync: func(dataplane.SyncRequest) (dataplane.Report, error) { return dataplane.Report{}, nil }}
		request := dataplane.SyncRequest{Want: snapshot(t, dns([]netip.AddrPort{e1}, e1))}
		if _, err := c.Watch(done).Sync(ctx, request); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if left := []conntrack.Entry{flow(vip4, here)}; !slices.Equal(table.entries, left) {
			t.Errorf("left are %v, want %v", table.entries, left)
		}
	})
}
