package ipvs

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// BenchmarkScale: what a node with many Services costs on the kernel itself,
// in a network namespace; run it with -benchtime 1x, on a kernel with IPVS.
func BenchmarkScale(b *testing.B) {
	for _, services := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			for b.Loop() {
				s := openScale(b, services)
				s.report("s-cold-start", func() { s.sync(false) })
				s.report("s-one-change", func() { s.change(4); s.sync(false) })
				s.report("s-nothing", func() { s.sync(false) })
				s.report("s-audit", s.audit)
				s.report("s-resync", func() { s.sync(true) })
			}
		})
	}
}

// scale is a plane in a namespace of its own.
type scale struct {
	*testing.B
	plane dataplane.Plane
	want  *dataplane.Snapshot
}

func openScale(b *testing.B, services int) *scale {
	b.Helper()
	runtime.LockOSThread() // for good: the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Fatalf("a new network namespace: %v: run as root", err)
	}
	if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err != nil {
		b.Fatal(err)
	}
	e := dataplane.Empty().Edit()
	node := netip.MustParseAddr("192.0.2.1")
	e.SetNode(&dataplane.Node{
		Name: "node", PrimaryIPs: []netip.Addr{node}, Addresses: []netip.Addr{node}, NodePortAddrs: []netip.Addr{node},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, Mark: 0x4000, DropInvalid: true,
	})
	for i := range services {
		e.Put(numbered(i, 5))
	}
	want, err := e.Build()
	if err != nil {
		b.Fatal(err)
	}
	plane, err := Mode(Options{Backend: netfilter.Legacy}).Open(b.Context(), dataplane.IPv4)
	if err != nil {
		b.Fatalf("%v; or run with -exec build/tools/secondkernel", err)
	}
	return &scale{b, plane, want}
}

// report measures one step.
func (s *scale) report(unit string, step func()) {
	start := time.Now()
	step()
	s.ReportMetric(time.Since(start).Seconds(), unit)
}

// change gives one Service another number of endpoints.
func (s *scale) change(endpoints int) {
	e := s.want.Edit()
	e.Put(numbered(7, endpoints))
	want, err := e.Build()
	if err != nil {
		s.Fatal(err)
	}
	s.want = want
}

func (s *scale) sync(distrust bool) {
	r, err := s.plane.Sync(s.Context(), dataplane.SyncRequest{Now: time.Now(), Want: s.want, Distrust: distrust})
	if err != nil || len(r.Failed) > 0 || len(r.Repaired) > 0 {
		s.Fatalf("sync: %v, failed %v, repaired %v", err, r.Failed, r.Repaired)
	}
}

func (s *scale) audit() {
	if found, err := s.plane.Audit(s.Context(), s.want); err != nil || len(found) > 0 {
		s.Fatalf("audit: %v, %v", found, err)
	}
}
