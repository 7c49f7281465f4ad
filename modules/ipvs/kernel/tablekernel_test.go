package kernel

import (
	"net/netip"
	"reflect"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// TestTableOfTheKernel: the file and the answers of netlink say the same, so
// that List may take a real server from either.
func TestTableOfTheKernel(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("a new network namespace: %v: run as root", err)
	}
	if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err != nil {
		t.Fatal(err)
	}
	h, err := Open(t.Context())
	if err != nil {
		t.Fatalf("%v; or run the tests with -exec build/tools/secondkernel", err)
	}
	defer h.Close()
	for _, f := range dataplane.Families() {
		vip, real := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.1.0.7")
		if f == dataplane.IPv6 {
			vip, real = netip.MustParseAddr("fd00:96::1"), netip.MustParseAddr("fd00:1::7")
		}
		var ops []Op
		for i := range uint16(300) { // more than one page
			k := Key{Protocol: []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP}[i%3], Addr: vip, Port: 1000 + i}
			ops = append(ops, Op{Verb: AddServer, Key: k, Server: Server{Scheduler: "rr", Flags: OnePacket * Flags(i&1)}})
			for j := range i % 5 {
				ops = append(ops, Op{Verb: AddReal, Key: k, Real: netip.AddrPortFrom(real, 9-j), Weight: int(j)})
			}
		}
		if refused, err := h.Apply(t.Context(), ops); err != nil || len(refused) > 0 {
			t.Fatal(refused, err)
		}
		if got := h.table.reals(f); len(got) != 300 {
			t.Errorf("%s: the table has %d virtual servers", f, len(got))
		}
		withTable, err := h.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		asked := Host{socket: h.socket, kind: h.kind}
		withoutTable, err := asked.List(t.Context(), f)
		if err != nil || len(withoutTable) != 300 || !reflect.DeepEqual(withTable, withoutTable) {
			t.Errorf("%s: %v\nwith the table %v\nwithout %v", f, err, withTable, withoutTable)
		}
	}
}
