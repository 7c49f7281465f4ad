package userspace

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
	"github.com/portway/portway/modules/relay"
)

func TestMain(m *testing.M) {
	if words := os.Getenv(childSite); words != "" {
		if err := child(strings.Fields(words)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(rig.Main(m))
}

var budget = flag.Duration("budget", 2*time.Second, "time for each law; more finds more")

// onBackends runs a test of the whole mode.
func onBackends(t *testing.T, test func(*testing.T, dataplanetest.Config)) {
	dataplanetest.OnBackends(t, func(t *testing.T, backend string) {
		mode := Mode(Options{})
		mode.Open = openHere(nil)
		test(t, dataplanetest.Config{
			Mode: mode, Iptables: backend, Budget: *budget,
			OpenFaulty: func(fail func() error) dataplanetest.Open { return openHere(fail) },
		})
	})
}

func TestLaws(t *testing.T) { onBackends(t, dataplanetest.RunLaws) }

func TestScale(t *testing.T) { onBackends(t, dataplanetest.RunScale) }

func TestScenarios(t *testing.T) {
	onBackends(t, func(t *testing.T, cfg dataplanetest.Config) { dataplanetest.RunScenarios(t, cfg) })
}

// openHere opens a plane whose relay dials in the network namespace in which it
// was opened: goroutines are in that of the process. Calls to the kernel fail
// when fail says so.
func openHere(fail func() error) dataplanetest.Open {
	return func(ctx context.Context, f dataplane.Family) (dataplane.Plane, error) {
		p, err := openWith(ctx, Options{}, f)
		if err != nil {
			return nil, err
		}
		if fail != nil {
			p.program.Kernel = netfiltertest.Failing(p.program.Kernel, fail)
		}
		return p, nil
	}
}

func openWith(ctx context.Context, o Options, f dataplane.Family) (*Plane, error) {
	p, err := o.open(ctx, f)
	if err != nil {
		return nil, err
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	p.relay = relay.New(relay.Config{Dial: dialIn(ns, p.mark)})
	return p, nil
}

func dialIn(ns *os.File, mark *atomic.Uint32) relay.DialFunc {
	return func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		done := make(chan result, 1)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			var r result
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				r.err = fmt.Errorf("enter the node: %w", err)
			} else {
				r.conn, r.err = relay.Dialer(mark.Load)(ctx, network, to)
			}
			done <- r
		}()
		r := <-done
		return r.conn, r.err
	}
}
