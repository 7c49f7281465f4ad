package dataplanetest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"
)

func TestStatesSurviveText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := States().Draw(t, "state")
		got, err := ParseState(want.String())
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() {
			t.Errorf("written and read:\n%sbecomes\n%s", want, got)
		}
		if a, b := mustSnapshot(t, want, dataplane.Empty()), mustSnapshot(t, got, dataplane.Empty()); !samePorts(a, b) {
			t.Errorf("written and read, the state means something else:\n%s", want)
		}
	})
}

// TestSuccessorsShare: a snapshot keeps what did not change, and is what the
// state alone would give.
func TestSuccessorsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := States().Draw(t, "state")
		old := mustSnapshot(t, state, dataplane.Empty())
		next := Successor(state).Draw(t, "next state")
		now := mustSnapshot(t, next, old)
		if direct := mustSnapshot(t, next, dataplane.Empty()); !samePorts(now, direct) {
			t.Errorf("after\n%s the state\n%s means something else than alone", state, next)
		}
		for sp := range now.ServicePorts() {
			if before, ok := old.ServicePort(sp.Name); ok && before != sp && reflect.DeepEqual(before, sp) {
				t.Errorf("%s was made anew and is the same", sp.Name)
			}
		}
	})
}

func mustSnapshot(t *rapid.T, s State, earlier *dataplane.Snapshot) *dataplane.Snapshot {
	snapshot, err := s.Snapshot(earlier)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func samePorts(a, b *dataplane.Snapshot) bool {
	all := func(s *dataplane.Snapshot) map[dataplane.ServicePortName]*dataplane.ServicePort {
		m := make(map[dataplane.ServicePortName]*dataplane.ServicePort)
		for sp := range s.ServicePorts() {
			m[sp.Name] = sp
		}
		return m
	}
	return reflect.DeepEqual(a.Node(), b.Node()) && reflect.DeepEqual(all(a), all(b))
}

func TestProbesSurviveText(t *testing.T) {
	for _, line := range []string{
		"c TCP 10.96.0.10:80 to e1,e2 from c",
		"c:5000 UDP [fd00:96::10]:53 to e1",
		"up TCP 192.168.77.10:30080 silent",
		"node UDP 10.96.0.10:53 refused",
		"e1 TCP 10.96.0.10:80 sticks to e1,remote from node",
	} {
		p, err := ParseProbe(line)
		if err != nil || p.String() != line {
			t.Errorf("%q becomes %q, %v", line, p, err)
		}
	}
}

// TestScenarioErrorsNameTheirPlace: a scenario is written by hand.
func TestScenarioErrorsNameTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"-- probes --\n": `file 1 is called "probes", want "state"`,
		"-- state --\nweb TCP 80->8080 ip=10.96.0.1":            "line 1",
		"-- state --\nweb TLS 80->8080":                         "unknown protocol",
		"-- state --\nnode detect=Guess":                        `"Guess" is none of`,
		"-- state --\nweb TCP 80->8080 endpoints=e0":            `no host is named "e0"`,
		"-- state --\n-- probes --\nc TCP nowhere to":           `probe "c TCP nowhere to"`,
		"-- state --\n-- probes --\nx TCP 1.2.3.4:5 silent":     `no host is named "x"`,
		"-- state --\n-- probes --\nc TCP 1.2.3.4:5 lost":       `"lost" is none of`,
		"-- state --\n-- probes --\nc TCP 1.2.3.4:5 to e1 by c": `"by": want from`,
	} {
		if _, err := ParseScenario([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

// TestWaysEndInTheLastState: and each step of a split change is one Service.
func TestWaysEndInTheLastState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := States().Draw(t, "state")
		states := []State{first, Successor(first).Draw(t, "next state")}
		want := mustSnapshot(t, states[1], dataplane.Empty())
		for name, way := range ways {
			all := way(states)
			if got := mustSnapshot(t, all[len(all)-1], dataplane.Empty()); !samePorts(got, want) {
				t.Errorf("%s ends in another state", name)
			}
			for i := 1; name == "split" && i < len(all); i++ {
				before, after := mustSnapshot(t, all[i-1], dataplane.Empty()), mustSnapshot(t, all[i], dataplane.Empty())
				if n := differing(before, after); n > 1 {
					t.Errorf("step %d changes %d Services", i, n)
				}
			}
		}
	})
}

func differing(a, b *dataplane.Snapshot) int {
	names := make(map[dataplane.ServicePortName]bool)
	for _, s := range []*dataplane.Snapshot{a, b} {
		for sp := range s.ServicePorts() {
			x, _ := a.ServicePort(sp.Name)
			y, _ := b.ServicePort(sp.Name)
			if !reflect.DeepEqual(x, y) {
				names[dataplane.ServicePortName{Namespace: sp.Name.Namespace, Name: sp.Name.Name, Port: sp.Name.Port}] = true
			}
		}
	}
	return len(names)
}
