package dataplanetest

import (
	"errors"
	"math/rand/v2"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"
)

// errInjected is what a call to the kernel fails with.
var errInjected = errors.New("injected fault")

// faults is law 5: calls fail at random during every step of a walk; between the
// attempts no flow is let through that neither the old nor the new snapshot lets
// through, none is cut that both do, and once the faults end everything is as if
// there had been none.
// Proves S7.1, S9.3.
func faults(t *rapid.T, cfg Config) {
	if cfg.OpenFaulty == nil {
		t.Fatalf("mode %s has no way to make its calls fail: set Config.OpenFaulty", cfg.Mode.Name)
	}
	state := States().Draw(t, "state")
	b := newBed(t, cfg, state)
	b.close()
	failing := false
	// Not drawn one by one: the calls come from other goroutines.
	dice := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed of the faults"), 0))
	b.open(cfg.OpenFaulty(func() error {
		if failing && dice.IntN(3) == 0 {
			return errInjected
		}
		return nil
	}))
	b.mustSync(state)
	b.hold(shotsOf(t, b, 100))
	for range rapid.IntRange(1, 3).Draw(t, "steps") {
		old := b.want
		b.aim(Successor(b.state).Draw(t, "next state"))
		failing = true
		b.stumble(t, old)
		failing = false
		b.mustSync(b.state)
		b.checkSettled()
		b.checkHeld()
		b.checkArrivals(shotsOf(t, b, 150))
	}
	b.checkPathIndependent()
}

// stumble syncs a few times while calls fail.
func (b *bed) stumble(t *rapid.T, old *dataplane.Snapshot) {
	for range rapid.IntRange(1, 3).Draw(t, "failing syncs") {
		reports, err := b.sync(oneIn(t, 3, "distrust"))
		if err == nil && !anyFailed(reports) {
			return
		}
		if err != nil && !errors.Is(err, errInjected) {
			b.fail("the error of a failed sync does not wrap its cause: %v", err)
		}
		if wrong := b.misled(shotsOf(t, b, 100), old, b.want); len(wrong) > 0 {
			b.fail("after a failed sync (%v) flows end as neither the old nor the new snapshot says:\n%s", err, listed(wrong))
		}
	}
}

func anyFailed(reports map[dataplane.Family]dataplane.Report) bool {
	for _, r := range reports {
		if len(r.Failed) > 0 {
			return true
		}
	}
	return false
}
