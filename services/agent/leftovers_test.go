package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/services/agent/config"
	"github.com/portway/portway/services/agent/metrics"
)

// cleaned records which modes were cleaned up, and refuses the first times.
type cleaned struct {
	mu      sync.Mutex
	calls   []string
	refuses int
}

func (c *cleaned) mode(name string) dataplane.Mode {
	return dataplane.Mode{Name: name, Cleanup: func(_ context.Context, f dataplane.Family) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.calls = append(c.calls, name+" "+f.String())
		if c.refuses > 0 {
			c.refuses--
			return errors.New("chain X is left")
		}
		return nil
	}}
}

func (c *cleaned) so() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// TestLeftovers: nothing is touched before the first good Sync of its family,
// the mode in use never, and what cannot be removed is tried again.
// Proves S9.7.
func TestLeftovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cleaned{refuses: 1}
		used := c.mode("iptables")
		l := newLeftovers([]dataplane.Mode{used, c.mode("ipvs"), c.mode("nftables")},
			choice{mode: used, families: []dataplane.Family{v4, v6}}, discard(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for f := range l.ready {
			wg.Go(func() { l.run(ctx, f) })
		}
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if have := c.so(); !slices.Equal(have, want) {
				t.Errorf("%s: cleaned up %q, want %q", when, have, want)
			}
		}
		expect("before a Sync")
		l.synced(v4)
		expect("after a Sync", "ipvs IPv4", "nftables IPv4")
		l.synced(v4)
		time.Sleep(leftoversRetry) //nolint:forbidigo // virtual time passes
		expect("later", "ipvs IPv4", "nftables IPv4", "ipvs IPv4")
		time.Sleep(leftoversRetry) //nolint:forbidigo // virtual time passes
		expect("later still", "ipvs IPv4", "nftables IPv4", "ipvs IPv4")
		cancel()
		wg.Wait()
	})
}

// TestConnectionsGoOn: what connections need stays until they have ended, of the
// mode in use, too; how many there are is told.
func TestConnectionsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, told []string
		left := 2
		retires := func(name string) dataplane.Mode {
			return dataplane.Mode{Name: name, Retire: func(_ context.Context, r dataplane.Retirement) (int, error) {
				calls = append(calls, fmt.Sprint(name, " ", r.Age, " ", r.InUse))
				if r.InUse {
					return 0, nil
				}
				left--
				return left, nil
			}}
		}
		goOn := func(mode string, f dataplane.Family, n int) { told = append(told, fmt.Sprint(mode, " ", f, " ", n)) }
		used := retires("new")
		l := newLeftovers([]dataplane.Mode{used, retires("old")}, choice{mode: used, families: []dataplane.Family{v4}}, discard(), goOn)
		l.synced(v4)
		l.run(t.Context(), v4)
		if want := []string{"new 0s true", "old 0s false", "old 30s false"}; !slices.Equal(calls, want) {
			t.Errorf("retired %q, want %q", calls, want)
		}
		if want := []string{"new IPv4 0", "old IPv4 1", "old IPv4 0"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// TestLeftoversAfterGoodSyncsOnly: in the agent, a Sync that failed is none.
func TestLeftoversAfterGoodSyncsOnly(t *testing.T) {
	c, p := new(cleaned), new(fickle)
	p.broken.Store(true)
	a, _, stop := startAgent(t, p, c.mode("old"))
	eventually(t, "a change waits too long", func() bool { return !a.health.Live() })
	if have := c.so(); have != nil {
		t.Errorf("before the first good Sync: cleaned up %q", have)
	}
	p.broken.Store(false)
	eventually(t, "what is left is removed", func() bool { return slices.Equal(c.so(), []string{"old IPv4"}) })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestNoLeftoversBesideAnotherProxy: who serves the Services of one proxy name
// does not remove what serves the others.
func TestNoLeftoversBesideAnotherProxy(t *testing.T) {
	a := &agent{opts: config.NewOptions(), log: discard(), metrics: metrics.New("", nil), chooser: &chooser{modes: []dataplane.Mode{able("x", v4), able("y", v4)}}}
	inUse := choice{mode: able("x", v4), families: []dataplane.Family{v4}}
	if n := len(a.newLeftovers(inUse).all); n != 1 {
		t.Errorf("alone: cleans up %d modes, want 1", n)
	}
	a.opts.Agent.ServiceProxyName = "mine"
	if n := len(a.newLeftovers(inUse).all); n != 0 {
		t.Errorf("beside another proxy: cleans up %d modes", n)
	}
}
