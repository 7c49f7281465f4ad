package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"
)

// victimState holds the state that a process is to program; it makes RunLaws
// that process.
const victimState = "PORTWAY_LAWS_VICTIM"

// beVictim programs a state, in the namespace in which the process was started,
// until it is killed or done.
func beVictim(t *testing.T, cfg Config, text string) {
	state, err := ParseState(text)
	if err != nil {
		t.Fatal(err)
	}
	want, err := state.Snapshot(dataplane.Empty())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range cfg.families() {
		p, err := cfg.Mode.Open(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Sync(t.Context(), dataplane.SyncRequest{Now: time.Now(), Want: want}); err != nil {
			t.Fatal(err)
		}
	}
}

// kill is law 8: a process that is killed on its way from one state to another
// leaves each flow as one of the two says, and a new one gets all right.
// Proves S7.2, S9.3, calico#13279.
func kill(t *rapid.T, cfg Config, test string) {
	state := States().Draw(t, "state")
	b := newBed(t, cfg, state)
	b.mustSync(state)
	if cfg.Mode.Has(dataplane.KeepFlows) {
		b.hold(shotsOf(t, b, 100))
	}
	b.close()
	old := b.want
	b.aim(Successor(state).Draw(t, "next state"))
	// Long enough that some are done, which must not matter.
	life := time.Duration(rapid.IntRange(0, 400).Draw(t, "lives for ms")) * time.Millisecond
	if err := b.runVictim(test, life); err != nil {
		b.fail("%v", err)
	}
	b.orphaned = !cfg.Mode.Has(dataplane.KeepFlows)
	if wrong := b.misled(shotsOf(t, b, 150), old, b.want); len(wrong) > 0 {
		b.fail("a process killed after %v leaves flows that end as neither snapshot says:\n%s", life, listed(wrong))
	}
	b.orphaned = false
	b.checkHeld()
	b.open(cfg.Mode.Open)
	b.mustSync(b.state)
	b.checkSettled()
	b.checkHeld()
	b.checkArrivals(shotsOf(t, b, 150))
	b.checkPathIndependent()
}

// runVictim starts the running test once more, as a process of the node that
// programs the wanted state, and kills it.
func (b *bed) runVictim(test string, life time.Duration) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), life)
	defer cancel()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	var output []byte
	err = b.inNode(func() (err error) {
		cmd := exec.CommandContext(ctx, program, "-test.run", exactly(test))
		cmd.Env = append(os.Environ(), victimState+"="+b.state.String())
		output, err = cmd.CombinedOutput()
		return err
	})
	if err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the process to be killed failed on its own: %w\n%s", err, output)
	}
	return nil
}

// exactly is the pattern that runs one test only.
func exactly(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	return strings.Join(parts, "/")
}
