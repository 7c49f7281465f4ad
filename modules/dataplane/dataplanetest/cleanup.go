package dataplanetest

import "pgregory.net/rapid"

// cleanup is law 6: what others have is there while the mode runs, and after its
// cleanup nothing else is.
// Proves S9.5, kubernetes#59507, kubernetes#70615.
func cleanup(t *rapid.T, cfg Config) {
	state := States().Draw(t, "state")
	newBed(t, cfg, state).checkCleanup(state)
}

func (b *bed) checkCleanup(state State) {
	b.t.Helper()
	before := b.mustDump()
	b.mustCleanup() // works without having run the mode
	if after := b.mustDump(); after != before {
		b.fail("cleanup of a node where the mode never ran (+) changes it:\n%s", difference(before, after))
	}
	b.mustSync(state)
	b.checkForeign(before)
	b.close()
	for range 2 {
		b.mustCleanup()
		if after := b.mustDump(); after != before {
			b.fail("before the mode (-) and after its cleanup (+):\n%s", difference(before, after))
		}
	}
}

func (b *bed) mustDump() string {
	b.t.Helper()
	text, err := dump(b.t.Context(), b.rig.Node, b.cfg)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	return text
}

func (b *bed) mustCleanup() {
	b.t.Helper()
	for _, f := range b.cfg.families() {
		if err := b.inNode(func() error { return b.cfg.Mode.Cleanup(b.t.Context(), f) }); err != nil {
			b.fail("cleanup of %s: %v", f, err)
		}
	}
}

// checkForeign says what the mode has taken from others.
func (b *bed) checkForeign(before string) {
	b.t.Helper()
	if gone := onlyIn(before, b.mustDump()); len(gone) > 0 {
		b.fail("gone while the mode runs: %q", gone)
	}
}
