package dataplanetest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"
)

// The environment of a process that is to be killed. victimState is the state
// that it is to program, and makes RunLaws that process; victimCalls is how many
// calls to the kernel it lives for, if not 0.
const (
	victimState = "PORTWAY_LAWS_VICTIM"
	victimCalls = "PORTWAY_LAWS_VICTIM_CALLS"
)

// started is what a victim says before it opens its planes.
const started = "victim: started"

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
	open, err := victimOpen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(os.Stderr, started)
	for _, f := range cfg.families() {
		p, err := open(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Sync(t.Context(), dataplane.SyncRequest{Now: time.Now(), Want: want}); err != nil {
			t.Fatal(err)
		}
	}
}

// victimOpen opens planes that take the process with them at one of their calls.
func victimOpen(cfg Config) (Open, error) {
	last, err := strconv.Atoi(os.Getenv(victimCalls))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", victimCalls, err)
	}
	if last == 0 || cfg.OpenFaulty == nil {
		return cfg.Mode.Open, nil
	}
	var calls atomic.Int64
	return cfg.OpenFaulty(func() error {
		if calls.Add(1) == int64(last) {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}), nil
}

// kill is law 8: a process that is killed on its way from one state to another
// leaves each flow as one of the two says, and a new one gets all right.
// Proves S7.2, S9.3, calico#13279.
func kill(t *rapid.T, cfg Config, test string) {
	state := States().Draw(t, "state")
	b := newBed(t, cfg, state)
	begin := time.Now()
	b.mustSync(state)
	if cfg.Mode.Has(dataplane.KeepFlows) {
		b.hold(shotsOf(t, b, 100))
	}
	d := drawDeath(t, time.Since(begin))
	b.close()
	old := b.want
	b.aim(Successor(state).Draw(t, "next state"))
	if err := b.runVictim(test, d); err != nil {
		b.fail("%v", err)
	}
	b.orphaned = !cfg.Mode.Has(dataplane.KeepFlows)
	if wrong := b.misled(shotsOf(t, b, 150), old, b.want); len(wrong) > 0 {
		b.fail("a process killed %s leaves flows that end as neither snapshot says:\n%s", d, listed(wrong))
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

// death is when a process dies, and who with it.
type death struct {
	// calls is at which call to the kernel; 0 is any time, even within one.
	calls int
	// life is how long it has after it has started, if calls is 0.
	life time.Duration
	// alone leaves the programs that it runs to themselves, as kill -9 does and
	// the end of a container does not.
	alone bool
}

func (d death) String() string {
	with := "with its children"
	if d.alone {
		with = "alone"
	}
	if d.calls > 0 {
		return fmt.Sprintf("at call %d of the kernel, %s", d.calls, with)
	}
	return fmt.Sprintf("after %v, %s", d.life, with)
}

// drawDeath aims at the time in which a Sync works, which is known from another
// one, and a little past it: that some are done must not matter.
func drawDeath(t *rapid.T, sync time.Duration) death {
	return death{
		calls: max(0, rapid.IntRange(-12, 12).Draw(t, "dies at call")),
		life:  sync * time.Duration(rapid.IntRange(0, 120).Draw(t, "dies after percent of a sync")) / 100,
		alone: rapid.Bool().Draw(t, "dies alone"),
	}
}

// runVictim starts the running test once more, as a process of the node that
// programs the wanted state, and has it die.
func (b *bed) runVictim(test string, d death) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(b.t.Context(), program, "-test.run", exactly(test))
	cmd.Env = append(os.Environ(), victimState+"="+b.state.String(), fmt.Sprintf("%s=%d", victimCalls, d.calls))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	words, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := b.inNode(cmd.Start); err != nil {
		return fmt.Errorf("start the process to be killed: %w", err)
	}
	said := d.attend(cmd.Process.Pid, words)
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); err != nil && !(ok && status.Signal() == syscall.SIGKILL) {
		return fmt.Errorf("the process to be killed failed on its own: %w\n%s", err, said)
	}
	return nil
}

// attend reads what a process says and, unless that is its own affair, kills it
// when its time has come.
func (d death) attend(pid int, words io.Reader) (said string) {
	lines := bufio.NewScanner(words)
	for lines.Scan() {
		said += lines.Text() + "\n"
		if lines.Text() == started && d.calls == 0 {
			defer time.AfterFunc(d.life, func() { d.kill(pid) }).Stop()
		}
	}
	return said
}

// kill may come too late: the process is not waited for yet, so that its number
// is still its own.
func (d death) kill(pid int) {
	if !d.alone {
		pid = -pid // the group
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// exactly is the pattern that runs one test only.
func exactly(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	return strings.Join(parts, "/")
}
