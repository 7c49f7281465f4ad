package addresses

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// fake is a kernel of which a test says what it holds.
type fake struct {
	mu      sync.Mutex
	held    []netip.Prefix
	err     error
	lists   int
	changes chan struct{}
	refuse  bool
}

// set exchanges what it holds, and what a list fails with.
func (f *fake) set(err error, held ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held, f.err = prefixes(held...), err
}

// change tells of a change.
func (f *fake) change() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes <- struct{}{}
}

// breakOff ends the subscription, and refuses new ones until allow.
func (f *fake) breakOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = true
	close(f.changes)
}

func (f *fake) allow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = false
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

func (f *fake) watcher() *Watcher {
	return &Watcher{
		log: slog.New(slog.DiscardHandler),
		list: func() ([]netip.Prefix, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lists++
			return slices.Clone(f.held), f.err
		},
		subscribe: func(context.Context) (<-chan struct{}, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.refuse {
				return nil, errors.New("no")
			}
			f.changes = make(chan struct{}, 1)
			return f.changes, nil
		},
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// run starts a Watcher on virtual time and returns where its reports go.
func run(t *testing.T, f *fake) *[][]netip.Prefix {
	t.Helper()
	var reports [][]netip.Prefix // written only while the test waits
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.watcher().Run(ctx, func(ps []netip.Prefix) { reports = append(reports, ps) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return &reports
}

func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func expect(t *testing.T, reports *[][]netip.Prefix, n int, last ...string) {
	t.Helper()
	if len(*reports) != n || !slices.Equal((*reports)[n-1], prefixes(last...)) {
		t.Errorf("reports %v, want %d, the last %v", *reports, n, last)
	}
}

// Proves S5.4.
func TestReportsChangesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{held: prefixes("10.0.0.1/24")}
		reports := run(t, f)
		expect(t, reports, 1, "10.0.0.1/24")
		f.set(nil, "10.0.0.1/24", "10.0.0.2/24")
		f.change()
		wait(time.Second)
		expect(t, reports, 2, "10.0.0.1/24", "10.0.0.2/24")
		f.change() // of no effect
		wait(time.Second)
		expect(t, reports, 2, "10.0.0.1/24", "10.0.0.2/24")
	})
}

func TestBurstIsListedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{held: prefixes("10.0.0.1/24")}
		run(t, f)
		before := f.count()
		for range 20 {
			f.change()
			wait(time.Millisecond)
		}
		wait(time.Second)
		if n := f.count() - before; n != 1 {
			t.Errorf("20 changes in 20 ms were listed %d times", n)
		}
	})
}

// TestFailedListKeepsAddresses: kubernetes#129146, NodePorts died when a list
// of addresses failed.
// Proves S5.4.
func TestFailedListKeepsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{held: prefixes("10.0.0.1/24")}
		reports := run(t, f)
		f.set(errors.New("results may be incomplete or inconsistent"))
		f.change()
		wait(10 * time.Second)
		expect(t, reports, 1, "10.0.0.1/24")
		f.set(nil, "10.0.0.9/24")
		wait(2 * time.Second) // by itself, without another change
		expect(t, reports, 2, "10.0.0.9/24")
	})
}

func TestFirstListMayFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{err: errors.New("not yet")}
		reports := run(t, f)
		if len(*reports) > 0 {
			t.Errorf("reported %v when nothing was known", *reports)
		}
		f.set(nil, "10.0.0.1/24")
		wait(2 * time.Second)
		expect(t, reports, 1, "10.0.0.1/24")
	})
}

func TestBrokenSubscriptionIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{held: prefixes("10.0.0.1/24")}
		reports := run(t, f)
		f.set(nil, "10.0.0.2/24")
		f.breakOff()
		wait(time.Second)
		expect(t, reports, 2, "10.0.0.2/24") // what was missed is found at once
		f.allow()
		wait(2 * time.Second)
		f.set(nil, "10.0.0.3/24")
		f.change()
		wait(time.Second)
		expect(t, reports, 3, "10.0.0.3/24")
	})
}

func TestIdleListsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{held: prefixes("10.0.0.1/24")}
		run(t, f)
		before := f.count()
		wait(time.Hour)
		if n := f.count() - before; n > 60 {
			t.Errorf("listed %d times in a quiet hour", n)
		}
	})
}

// TestKernel watches a real one, and leaves out a device of ours: any kind of
// device will do.
// Proves S5.4.
func TestKernel(t *testing.T) {
	r := rig.New(t, rig.Options{})
	for _, argv := range [][]string{
		{"ip", "link", "add", "kube-ipvs0", "type", "bridge"},
		{"ip", "address", "add", "10.96.0.1/32", "dev", "kube-ipvs0"},
	} {
		if _, err := r.Node.Run(t.Context(), argv...); err != nil {
			t.Fatal(err)
		}
	}
	var w *Watcher
	err := r.Node.Do(func() (err error) {
		w, err = Open(slog.New(slog.DiscardHandler), "kube-ipvs0", "no-such-device")
		if err != nil {
			return err
		}
		// Run subscribes from a goroutine, which would be outside.
		changes, err := w.subscribe(t.Context())
		w.subscribe = func(context.Context) (<-chan struct{}, error) { return changes, nil }
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan []netip.Prefix, 10)
	go w.Run(t.Context(), func(ps []netip.Prefix) { reports <- ps })

	next := func() []netip.Prefix {
		t.Helper()
		select {
		case ps := <-reports:
			return ps
		case <-time.After(10 * time.Second):
			t.Fatal("no report")
			return nil
		}
	}
	first := next()
	for _, want := range prefixes("192.168.77.10/24", "127.0.0.1/8", "::1/128", "fd00:77::10/64") {
		if !slices.Contains(first, want) {
			t.Errorf("%s is not among %v", want, first)
		}
	}
	if slices.Contains(first, netip.MustParsePrefix("10.96.0.1/32")) {
		t.Errorf("an address on a device of ours is among %v", first)
	}
	added := netip.MustParsePrefix("192.168.77.99/24")
	if err := r.Node.AddAddr("eth0", added); err != nil {
		t.Fatal(err)
	}
	if now := next(); !slices.Contains(now, added) {
		t.Errorf("%s is not among %v", added, now)
	}
	if err := r.Node.DelAddr("eth0", added); err != nil {
		t.Fatal(fmt.Errorf("take it away again: %w", err))
	}
	if now := next(); !slices.Equal(now, first) {
		t.Errorf("%v, want %v", now, first)
	}
}
