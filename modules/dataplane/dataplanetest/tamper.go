package dataplanetest

import (
	"math/rand/v2"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"
)

// tamper is the other side of laws 1 and 2: what somebody else takes away, the
// audit finds and a Sync that distrusts its memory repairs.
// Proves S9.4, kubernetes#81517.
func tamper(t *rapid.T, cfg Config) {
	state := States().Draw(t, "state")
	b := newBed(t, cfg, state)
	thief := b.newThief(rapid.Uint64().Draw(t, "choice of things"))
	b.mustSync(state)
	settled := b.mustDump()
	for range rapid.IntRange(1, 5).Draw(t, "things taken") {
		f := rapid.SampledFrom(cfg.families()).Draw(t, "family")
		taken := thief.take(rapid.IntRange(0, thief.ways()-1).Draw(t, "kind of thing"), f)
		if taken == "" {
			return
		}
		b.checkRepaired(taken)
	}
	if after := b.mustDump(); after != settled {
		b.fail("before (-) and after (+) repairs:\n%s", difference(settled, after))
	}
	b.checkArrivals(shotsOf(t, b, 150))
}

func (b *bed) checkRepaired(taken string) {
	b.t.Helper()
	found, err := b.audit()
	if err != nil {
		b.fail("%v", err)
	}
	if len(found) == 0 {
		b.fail("the audit does not see that this is gone: %s", taken)
	}
	reports, err := b.sync(true)
	if err != nil {
		b.fail("sync: %v", err)
	}
	writes, repaired := 0, 0
	for _, r := range reports {
		writes += r.Writes
		repaired += len(r.Repaired)
	}
	if writes == 0 || repaired == 0 {
		b.fail("a distrusting sync writes %d and reports %d repairs, and this is gone: %s", writes, repaired, taken)
	}
	b.checkSettled()
}

// thief takes away one thing at a time of what a mode has made in the kernel. It
// leaves what was there before.
type thief struct {
	*bed
	dice   *rand.Rand
	before map[dataplane.Family]belongings
}

// newThief looks at what is there already.
func (b *bed) newThief(seed uint64) *thief {
	b.t.Helper()
	t := &thief{b, rand.New(rand.NewPCG(seed, 0)), make(map[dataplane.Family]belongings)}
	for _, f := range b.cfg.families() {
		t.before[f] = b.belongings(f)
	}
	return t
}

// ways is the number of kinds of things.
func (t *thief) ways() int { return len(t.kinds()) }

func (t *thief) kinds() []func(dataplane.Family) string {
	kinds := []func(dataplane.Family) string{t.takeRule, t.takeEntry, t.takeAddress, t.takeRoute}
	if t.cfg.Take != nil {
		kinds = append(kinds, t.takeOther)
	}
	return kinds
}

// take takes a thing of the kind that is wished for, or of another one if there
// is none, and says what; "" if there is nothing at all.
func (t *thief) take(wish int, f dataplane.Family) (taken string) {
	t.t.Helper()
	kinds := t.kinds()
	for i := 0; i < len(kinds) && taken == ""; i++ {
		taken = kinds[(wish+i)%len(kinds)](f)
	}
	return taken
}
