package dataplanetest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// recorder is a test that is expected to fail.
type recorder struct {
	*testing.T
	failure string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failureOf runs f and returns how it failed; "" if it did not.
func failureOf(t *testing.T, f func(*recorder)) string {
	r := &recorder{T: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.failure
}

const mutantState = `
node detect=ClusterCIDR nodePorts=all
web TCP 80->8080 ips=10.96.0.10,fd00:96::10 nodePort=30080 loadBalancers=198.51.100.10 endpoints=e1,remote sourceRanges=203.0.113.0/24
far TCP 80->8080 ips=10.96.0.11,fd00:96::11 nodePort=30081 endpoints=remote external=Local
host TCP 82->8080 ips=10.96.0.13,fd00:96::13 endpoints=node2
dns UDP 53->8081 ips=10.96.0.53,fd00:96::53 endpoints=e1
none TCP 81->8080 ips=10.96.0.12,fd00:96::12
one TCP 83->8080 ips=10.96.0.14,fd00:96::14 endpoints=e1
`

// TestLawsFindFaults: a law that cannot fail is none.
func TestLawsFindFaults(t *testing.T) {
	state, err := ParseState(mutantState)
	if err != nil {
		t.Fatal(err)
	}
	for fault, law := range map[string]struct {
		check func(*bed, State)
		want  string
	}{
		"":                         {checkAll, ""},
		"forgets to masquerade":    {checkAll, "the source is not masqueraded"},
		"forgets hairpins":         {checkAll, "e1 UDP -> 10.96.0.53:53"},
		"rejects what to drop":     {checkAll, "should drop"},
		"ignores source ranges":    {checkAll, "the source is in none of the source ranges"},
		"explains wrongly":         {checkAll, "the kernel's answer is drop"},
		"writes always":            {checkAll, "second sync"},
		"masquerades too much":     {checkBypassing, "the source is not kept"},
		"audits blindly":           {tamperOnce, "the audit does not see"},
		"repairs nothing":          {tamperOnce, "a distrusting sync writes 0"},
		"leaves its chains":        {(*bed).checkCleanup, "after its cleanup"},
		"takes all chains":         {(*bed).checkCleanup, "gone while the mode runs"},
		"trusts failed writes":     {failOnce, "end where they should not"},
		"forwards invalid packets": {disturbOnce, "connection reset by peer"},
	} {
		t.Run(cmp.Or(fault, "none"), func(t *testing.T) {
			t.Parallel()
			failure := failureOf(t, func(r *recorder) {
				law.check(newBed(r, Config{Mode: naiveMode(Config{}, fault)}, state), state)
			})
			if law.want == "" && failure != "" || !strings.Contains(failure, law.want) {
				t.Errorf("the law finds %q, want %q", failure, law.want)
			}
		})
	}
}

func checkAll(b *bed, s State) {
	b.mustSync(s)
	b.checkSettled()
	b.checkExplained(b.shots())
	b.checkArrivals(b.shots())
}

// checkBypassing checks only the flows whose answers do not pass the node.
func checkBypassing(b *bed, s State) {
	b.mustSync(s)
	b.checkArrivals(slices.DeleteFunc(b.shots(), func(s Shot) bool { return returns(b.want.Decide(s.Flow), s) }))
}

func tamperOnce(b *bed, s State) {
	thief := b.newThief(1)
	b.mustSync(s)
	b.checkRepaired(thief.take(0, dataplane.IPv4))
}

func disturbOnce(b *bed, s State) {
	b.mustSync(s)
	for _, to := range []string{"10.96.0.14:83", "[fd00:96::14]:83"} {
		if err := b.survivesInvalid("c", netip.MustParseAddrPort(to)); err != nil {
			b.fail("%v", err)
		}
	}
}

func failOnce(b *bed, s State) {
	fails := true
	b.open(openNaive(Config{}, "trusts failed writes", func() error {
		if fails {
			return errInjected
		}
		return nil
	}))
	b.aim(s)
	if _, err := b.sync(false); !errors.Is(err, errInjected) {
		b.fail("the injected fault is reported as %v", err)
	}
	fails = false
	checkAll(b, s)
}

// TestFailureIsSaved: what a law fails with can be played as a scenario.
func TestFailureIsSaved(t *testing.T) {
	folder := t.TempDir()
	t.Setenv(failuresVariable, folder)
	state, err := ParseState(mutantState)
	if err != nil {
		t.Fatal(err)
	}
	failureOf(t, func(r *recorder) { (&bed{t: r, state: state}).fail("two\nlines") })
	text, err := os.ReadFile(filepath.Join(folder, "TestFailureIsSaved.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	saved, err := ParseScenario(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(saved.Acts) != 1 || saved.Acts[0].State.String() != state.String() || saved.Story != "two\nlines" {
		t.Errorf("saved is\n%s", text)
	}
}
