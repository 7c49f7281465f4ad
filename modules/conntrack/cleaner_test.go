package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
)

func TestPassFollowsTheFirstSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, flow(vip4, e1), flow(vip4, e2), flow(lb4, lb4), flow(vip6, vip6))
		pass(time.Hour)
		if s.dumps() != 0 {
			t.Error("dumped before the first Sync")
		}
		s.mustSync(snapshot(t, dns([]netip.AddrPort{e1}, e1)))
		s.left(flow(vip4, e1), flow(vip6, vip6))
		want := conntrack.Pass{Family: dataplane.IPv4, Seen: 3, Stale: 2, Deleted: 2}
		if got := s.passes(); len(got) != 1 || got[0] != want {
			t.Errorf("passes %+v, want %+v", got, want)
		}
	})
}

func TestPassOnlyWhenSomethingChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		first := snapshot(t, dns([]netip.AddrPort{e1}, e1))
		s.mustSync(first)
		web := &dataplane.ServicePort{Name: dataplane.ServicePortName{Name: "web", Protocol: dataplane.TCP}}
		tcp := next(t, first, func(b *dataplane.Builder) { b.Put(web) })
		udp := next(t, tcp, func(b *dataplane.Builder) { b.Put(dns([]netip.AddrPort{e2}, e2)) })
		moved := next(t, udp, func(b *dataplane.Builder) {
			b.SetNode(&dataplane.Node{NodePortAddrs: []netip.Addr{extraIP}})
		})
		gone := next(t, moved, func(b *dataplane.Builder) { b.Delete(dnsName) })
		tcpKey := dataplane.FrontendKey{Addr: vip4.Addr(), Port: 80, Protocol: dataplane.TCP}
		for _, c := range []struct {
			name   string
			want   *dataplane.Snapshot
			report dataplane.Report
			passes int
		}{
			{"nothing", first, dataplane.Report{}, 0},
			{"a TCP port", tcp, dataplane.Report{}, 0},
			{"a TCP frontend went", tcp, dataplane.Report{Removed: []dataplane.FrontendKey{tcpKey}}, 0},
			{"a UDP port", udp, dataplane.Report{}, 1},
			{"a UDP frontend went", udp, dataplane.Report{Removed: []dataplane.FrontendKey{key(ext4)}}, 1},
			{"the kernel was read", udp, dataplane.Report{Full: true}, 1},
			{"the node's addresses", moved, dataplane.Report{}, 1},
			{"a UDP port went", gone, dataplane.Report{}, 1},
			{"nothing again", gone, dataplane.Report{}, 0},
		} {
			before := len(s.passes())
			s.plane.sync = func(dataplane.SyncRequest) (dataplane.Report, error) { return c.report, nil }
			s.mustSync(c.want)
			if got := len(s.passes()) - before; got != c.passes {
				t.Errorf("%s: %d passes, want %d", c.name, got, c.passes)
			}
		}
	})
}

// TestIssue135323SlowCleaningDelaysNoSync, and what happens meanwhile is one
// more pass, not many.
// Proves S7.7, kubernetes#135323.
func TestIssue135323SlowCleaningDelaysNoSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.table.change(func() {
			s.table.perDelete = 10 * time.Millisecond
			for i := range 2000 {
				s.table.entries = append(s.table.entries, with(flow(vip4, e2), func(e *conntrack.Entry) { e.ID = uint32(i) }))
			}
		})
		began := time.Now()
		snap := snapshot(t, dns([]netip.AddrPort{e1}, e1))
		for range 100 {
			snap = next(t, snap, func(b *dataplane.Builder) { b.Put(dns([]netip.AddrPort{e1}, e1)) })
			s.mustSync(snap)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("100 Syncs took %s", d)
		}
		pass(time.Hour)
		s.left()
		if got := s.passes(); len(got) != 2 || got[0].Deleted != 2000 || got[0].Duration != 20*time.Second {
			t.Errorf("passes %+v", got)
		}
	})
}

// TestFailedPassIsRepeated, less and less often, whatever happens meanwhile,
// and with all that it had to do.
// Proves S7.7.
func TestFailedPassIsRepeated(t *testing.T) {
	broken := errors.New("broken")
	for name, breakIt := range map[string]func(*memory, error){
		"dump":   func(m *memory, err error) { m.failDump = err },
		"delete": func(m *memory, err error) { m.failDelete = err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				unknown := flow(port("10.96.0.99:53"), e1) // left by an earlier run
				s := start(t, flow(vip4, e1), unknown)
				breakIt(s.table, broken)
				s.plane.sync = func(dataplane.SyncRequest) (dataplane.Report, error) {
					return dataplane.Report{Removed: []dataplane.FrontendKey{key(unknown.Orig.Dst)}}, nil
				}
				snap := snapshot(t)
				s.mustSync(snap)
				s.plane.sync = nil
				for range 10 {
					snap = next(t, snap, func(b *dataplane.Builder) { b.Put(dns(nil)) })
					s.mustSync(snap)
				}
				s.mustSync(next(t, snap, func(b *dataplane.Builder) { b.Delete(dnsName) }))
				if n := s.dumps(); n != 1 {
					t.Errorf("%d dumps: events made repetition faster", n)
				}
				pass(time.Hour)
				if n := s.dumps(); n < 100 || n > 130 {
					t.Errorf("%d dumps in an hour, want one in 30 s", n)
				}
				for _, p := range s.passes() {
					if !errors.Is(p.Err, broken) {
						t.Errorf("pass %+v", p)
					}
				}
				s.table.change(func() { breakIt(s.table, nil) })
				pass(time.Minute)
				s.left()
				dumps := s.dumps()
				pass(time.Hour)
				if s.dumps() != dumps {
					t.Error("repeated a good pass")
				}
			})
		})
	}
}

// TestIssue112604FailedSyncLosesNothing: what a failed Sync removed, and what it
// was to change, is dealt with after the next good one; before that, the rules
// may still send flows to the old endpoint.
// Proves S7.7, kubernetes#112604.
func TestIssue112604FailedSyncLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := flow(port("10.96.0.99:53"), e1) // left by an earlier run
		s := start(t, flow(vip4, e1), old)
		s.plane.sync = func(dataplane.SyncRequest) (dataplane.Report, error) {
			return dataplane.Report{Removed: []dataplane.FrontendKey{key(old.Orig.Dst)}}, errors.New("resource temporarily unavailable")
		}
		swapped := snapshot(t, dns([]netip.AddrPort{e2}, e2))
		if s.sync(swapped) == nil {
			t.Fatal("the error is gone")
		}
		s.left(flow(vip4, e1), old)
		s.plane.sync = nil
		s.mustSync(swapped)
		s.left()
	})
}

// TestDeletionIsFoundWithoutTheReport: what the plane's report leaves out, the
// two snapshots tell.
// Proves S7.5.
func TestDeletionIsFoundWithoutTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, flow(vip4, e1), flow(nodePortOf(nodeIP4), e1), flow(nodePortOf(otherNode), e1))
		first := snapshot(t, dns([]netip.AddrPort{e1}, e1))
		s.mustSync(first)
		s.mustSync(next(t, first, func(b *dataplane.Builder) { b.Delete(dnsName) }))
		s.left(flow(nodePortOf(otherNode), e1))
	})
}

// TestFlowsOfTheNextSnapshotAreSafe: a pass for the last snapshot meets a flow
// to an endpoint that the Sync in progress has just programmed.
func TestFlowsOfTheNextSnapshotAreSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, flow(vip4, stranger), flow(lb4, e2))
		first := snapshot(t, dns([]netip.AddrPort{e1}, e1))
		second := next(t, first, func(b *dataplane.Builder) { b.Put(dns([]netip.AddrPort{e1, e2}, e1, e2)) })
		release, programmed := make(chan bool), make(chan bool)
		s.table.change(func() {
			s.table.onEntry = func(e conntrack.Entry) {
				if e.Orig.Dst == lb4 {
					<-programmed // the pass for the first snapshot sees it only now
				}
			}
		})
		s.mustSync(first)
		s.plane.sync = func(dataplane.SyncRequest) (dataplane.Report, error) {
			programmed <- true
			<-release
			return dataplane.Report{}, nil
		}
		done := make(chan error, 1)
		go func() { done <- s.sync(second) }()
		synctest.Wait()
		s.left(flow(lb4, e2))
		s.table.change(func() { s.table.onEntry = nil })
		release <- true
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		s.left(flow(lb4, e2))
	})
}

func TestStopEndsAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, flow(vip4, e1), flow(vip4, e2))
		s.table.change(func() { s.table.onEntry = func(conntrack.Entry) { s.stop() } })
		s.mustSync(snapshot(t))
		if got := s.passes(); len(got) != 1 || got[0].Seen != 1 || !errors.Is(got[0].Err, context.Canceled) {
			t.Errorf("passes %+v", got)
		}
	})
}

// endless is a table of a million flows that nobody holds in memory.
type endless struct{ deleted, largest int }

func (s *endless) Dump(_ context.Context, _ dataplane.Family, yield func(conntrack.Entry) bool) error {
	for i := range uint32(1_000_000) {
		e := flow(vip4, e2)
		e.ID = i
		if !yield(e) {
			return fmt.Errorf("stopped at %d", i)
		}
	}
	return nil
}

func (s *endless) Delete(_ context.Context, es []conntrack.Entry) (int, error) {
	s.deleted += len(es)
	s.largest = max(s.largest, len(es))
	return len(es), nil
}

// TestMemoryDoesNotGrowWithTheTable: a million flows, all stale.
// Proves S7.7.
func TestMemoryDoesNotGrowWithTheTable(t *testing.T) {
	table := &endless{}
	passes := make(chan conntrack.Pass, 1)
	c := conntrack.NewCleaner(table, dataplane.IPv4, func(p conntrack.Pass) { passes <- p })
	go c.Run(t.Context())
	snap := snapshot(t, dns([]netip.AddrPort{e1}, e1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := c.Watch(&plane{}).Sync(t.Context(), dataplane.SyncRequest{Want: snap}); err != nil {
		t.Fatal(err)
	}
	p := <-passes
	runtime.ReadMemStats(&after)
	if p.Err != nil || p.Deleted != 1_000_000 || table.deleted != 1_000_000 {
		t.Errorf("pass %+v", p)
	}
	// All that was ever allocated, garbage too.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("allocated %d bytes", grown)
	}
	if table.largest > 128 {
		t.Errorf("held %d entries", table.largest)
	}
}
