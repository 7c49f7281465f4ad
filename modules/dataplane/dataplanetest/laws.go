package dataplanetest

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"
)

// RunLaws holds a mode to the laws of the package's description. The test's
// package must have a TestMain that calls rig.Main.
func RunLaws(t *testing.T, cfg Config) {
	if text := os.Getenv(victimState); text != "" {
		beVictim(t, cfg, text)
		return
	}
	for law, test := range map[string]func(*testing.T, Config){
		"capabilities": capabilities, "expiry": expiry, "draining": draining, "sourcePorts": sourcePorts, "masquerade": masquerade, "sctp": sctp,
		"firewall": firewall, "marks": marks, "invalid": invalid,
	} {
		t.Run(law, func(t *testing.T) { test(t, cfg) })
	}
	name := t.Name()
	for law, property := range map[string]func(*rapid.T, Config){
		"walk": walk, "orders": orders, "tamper": tamper, "faults": faults, "cleanup": cleanup,
		"kill": func(t *rapid.T, cfg Config) { kill(t, cfg, name) },
	} {
		t.Run(law, func(t *testing.T) {
			t.Parallel()
			check(t, cfg, property)
		})
	}
}

// check tries a property with generated cases until its budget is spent, and
// with one at least. A case that failed is tried again, however long it takes to
// make it small.
func check(t *testing.T, cfg Config, property func(*rapid.T, Config)) {
	start, tried, failed := time.Now(), false, false
	rapid.Check(t, func(rt *rapid.T) {
		if tried && !failed && time.Since(start) > cfg.budget() {
			return
		}
		tried = true
		done := false
		defer func() { failed = failed || !done }()
		property(rt, cfg)
		done = true
	})
}

// walk is laws 1 to 4, and 7.
// Proves S3.14, S7.1, S9.6, kubernetes#14870, kubernetes#90186.
func walk(t *rapid.T, cfg Config) {
	state := States().Draw(t, "state")
	b := newBed(t, cfg, state)
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		b.mustSync(state)
		b.checkSettled()
		b.checkHeld()
		b.hold(shotsOf(t, b, 100))
		b.checkExplained(shotsOf(t, b, mostExplains(25)))
		b.checkArrivals(shotsOf(t, b, 250))
		state = Successor(state).Draw(t, "next state")
	}
	b.checkPathIndependent()
}

// shotsOf draws some of what could be sent at the bed's node.
func shotsOf(t *rapid.T, b *bed, n int) []Shot {
	all := b.shots()
	if len(all) <= n {
		return all
	}
	dice := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "choice of shots"), 0))
	dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:n]
}

// shots are those of the families that planes are open for.
func (b *bed) shots() []Shot {
	var all []Shot
	for _, s := range Shots(b.state, b.want) {
		if _, ok := b.planes[familyOf(s)]; ok {
			all = append(all, s)
		}
	}
	return all
}

// checkAudit is law 1; tamper shows that an audit can find something.
func (b *bed) checkAudit() {
	b.t.Helper()
	found, err := b.audit()
	if err != nil {
		b.fail("%v", err)
	}
	for _, d := range found {
		b.fail("audit after sync: %s", d)
	}
}

// checkSettled is laws 1 and 2.
func (b *bed) checkSettled() {
	b.t.Helper()
	b.checkAudit()
	for _, distrust := range []bool{false, true} {
		reports, err := b.sync(distrust)
		if err != nil {
			b.fail("second sync: %v", err)
		}
		for f, r := range reports {
			if r.Writes != 0 || len(r.Repaired) != 0 {
				b.fail("second sync of %s, distrust %t: %d writes, repaired %v", f, distrust, r.Writes, r.Repaired)
			}
		}
	}
}

// checkExplained is the first half of law 4.
func (b *bed) checkExplained(shots []Shot) {
	b.t.Helper()
	for _, s := range shots {
		e, err := b.explain(s)
		if err == nil {
			err = b.want.Decide(s.Flow).Lacking(b.cfg.Mode.Lacks).Agrees(e)
		}
		if err != nil {
			b.fail("explain %s: %v\n%s", s, err, stepsOf(e))
		}
	}
}

// checkPathIndependent is law 3.
func (b *bed) checkPathIndependent() {
	b.t.Helper()
	if !b.cfg.Mode.Has(dataplane.StableKernelState) {
		return
	}
	walked := b.mustDump()
	b.held = nil // a cleanup may cut them
	b.close()
	b.mustCleanup()
	b.open(b.cfg.Mode.Open)
	b.mustSync(b.state)
	if direct := b.mustDump(); direct != walked {
		b.fail("a walk of snapshots (-) and the direct way (+) end in different states:\n%s", difference(walked, direct))
	}
}
