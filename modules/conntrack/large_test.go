package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

const flows, staleFlows = 200_000, 20_000

// TestLargeTable is a start on a node with 200,000 flows, of which one in ten is
// stale: the kernel's default limit allows 262,144 in a namespace. What a million
// takes is shown by TestDumpMemoryDoesNotGrow, on a socket.
// Proves S7.7.
func TestLargeTable(t *testing.T) {
	var (
		vip     = netip.MustParseAddrPort("10.96.0.10:53")
		serving = netip.MustParseAddrPort("10.244.1.11:5353")
		gone    = netip.MustParseAddrPort("10.244.1.12:5353")
		want    = servedBy(t, vip, serving)
	)
	err := rig.New(t, rig.Options{}).Node.Do(func() error {
		err := create(flows, func(i int) Entry {
			client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(2 + i>>14), byte(i >> 6)}), uint16(1024+i&63))
			to := serving
			if i%(flows/staleFlows) == 0 {
				to = gone
			}
			return Entry{Protocol: dataplane.UDP, Orig: Tuple{client, vip}, Reply: Tuple{to, client}}
		})
		if err != nil {
			return err
		}
		if err := expect(t.Context(), map[netip.AddrPort]int{serving: flows - staleFlows, gone: staleFlows}); err != nil {
			return err
		}
		if err := firstPass(t, want); err != nil {
			return err
		}
		return expect(t.Context(), map[netip.AddrPort]int{serving: flows - staleFlows})
	})
	if err != nil {
		t.Error(err)
	}
}

// firstPass is that of a Cleaner that knows nothing.
func firstPass(t *testing.T, want *dataplane.Snapshot) error {
	t.Helper()
	c := NewCleaner(Table{}, dataplane.IPv4, nil)
	c.begin(want)
	c.end(want, dataplane.Report{Full: true}, nil)
	j, due := c.take()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p := c.pass(t.Context(), j)
	runtime.ReadMemStats(&after)
	if !due || p.Err != nil || p.Deleted != staleFlows || p.Seen < flows {
		return fmt.Errorf("the pass (due: %t) is %+v, want %d deleted of %d", due, p, staleFlows, flows)
	}
	// The heap grows to the peak of what was in use, and does not shrink.
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 16<<20 {
		return fmt.Errorf("the heap has grown by %d bytes", grown)
	}
	t.Logf("%d flows judged and %d deleted in %s", p.Seen, p.Deleted, p.Duration)
	return nil
}

// expect counts the kernel's flows by the endpoint that they lead to.
func expect(ctx context.Context, want map[netip.AddrPort]int) error {
	got := make(map[netip.AddrPort]int)
	err := Table{}.Dump(ctx, dataplane.IPv4, func(e Entry) bool {
		got[e.Reply.Src]++
		return true
	})
	if err == nil && !maps.Equal(got, want) {
		err = fmt.Errorf("the kernel has these flows, by endpoint: %v, want %v", got, want)
	}
	return err
}

// servedBy is a node with one Service that one endpoint serves.
func servedBy(t *testing.T, vip, endpoint netip.AddrPort) *dataplane.Snapshot {
	t.Helper()
	pool := &dataplane.Pool{Family: dataplane.IPv4, Endpoints: []dataplane.Endpoint{{Addr: endpoint, Weight: 1}}}
	r := dataplane.Route{Action: dataplane.Forward, Pool: pool}
	b := dataplane.Empty().Edit()
	b.Put(&dataplane.ServicePort{
		Name:  dataplane.ServicePortName{Namespace: "default", Name: "dns", Protocol: dataplane.UDP},
		Pools: []*dataplane.Pool{pool}, Serving: []netip.AddrPort{endpoint},
		Frontends: []*dataplane.Frontend{{
			Kind: dataplane.ClusterIP, Family: dataplane.IPv4, Addr: vip.Addr(), Port: vip.Port(), Routes: [3]dataplane.Route{r, r, r},
		}},
	})
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// create makes entries in the kernel, many with one packet. That they are there
// is for the caller to see.
func create(n int, entry func(int) Entry) error {
	const perPacket, attrTimeout, attrStatus, confirmed = 200, 7, 3, 1 << 3
	s, err := newSocket()
	if err != nil {
		return err
	}
	defer s.close()
	var packet []byte
	for i := range n {
		e := entry(i)
		packet = message(packet, msgNew, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL, uint32(i), func(b []byte) []byte {
			b = append(b, nfgenmsg(dataplane.IPv4)...)
			b = nested(b, attrTupleOrig, func(b []byte) []byte { return appendTuple(b, e.Orig, e.Protocol) })
			b = nested(b, attrTupleReply, func(b []byte) []byte { return appendTuple(b, e.Reply, e.Protocol) })
			b = attr(b, attrStatus, binary.BigEndian.AppendUint32(nil, confirmed)...)
			return attr(b, attrTimeout, binary.BigEndian.AppendUint32(nil, 3600)...)
		})
		if (i+1)%perPacket == 0 || i+1 == n {
			if err := s.send(packet); err != nil {
				return err
			}
			packet = packet[:0]
		}
	}
	return nil
}
