package dataplanetest

import (
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func sighting(server, source, local string) rig.Result {
	return rig.Result{Outcome: rig.Answered, Sighting: rig.Sighting{
		Server: server, Source: netip.MustParseAddrPort(source), Local: netip.MustParseAddrPort(local),
	}}
}

// TestJudge: what is legal in one state, and what on the way between two.
func TestJudge(t *testing.T) {
	const (
		onE1   = "web TCP 80->8080 ips=10.96.0.10 endpoints=e1"
		onE2   = "web TCP 80->8080 ips=10.96.0.10 endpoints=e2"
		closed = "web TCP 80->8080 ips=10.96.0.10"
		gone   = ""

		local   = "web TCP 80->8080 ips=10.96.0.10 nodePort=30000 endpoints=e1,remote internal=Local"
		cluster = "web TCP 80->8080 ips=10.96.0.10 nodePort=30000 endpoints=e1"
	)
	refused, silent := rig.Result{Outcome: rig.Refused}, rig.Result{Outcome: rig.Silent}
	e1, e2 := sighting("e1", "10.244.1.2:4", "10.244.1.11:8080"), sighting("e2", "10.244.1.2:4", "10.244.1.12:8080")
	remote := sighting("remote", "10.244.1.2:4", "10.244.2.11:8080")
	masqueraded := sighting("e1", "192.168.77.10:4", "10.244.1.11:8080")
	stranger := sighting("e1", "10.244.1.9:4", "10.244.1.11:8080")
	for _, tt := range []struct {
		name   string
		got    rig.Result
		states []string
		legal  bool
	}{
		{"the endpoint", e1, []string{onE1}, true},
		{"another endpoint", e2, []string{onE1}, false},
		{"a source that is not kept", masqueraded, []string{onE1}, false},
		{"a source of nobody", stranger, []string{onE1}, false},
		{"refused", refused, []string{onE1}, false},
		{"refused, no endpoint", refused, []string{closed}, true},
		{"silence, no endpoint", silent, []string{closed}, false},
		{"silence, no Service", silent, []string{gone}, true},
		{"answered, no Service", e1, []string{gone}, false},
		{"the old endpoint", e1, []string{onE1, onE2}, true},
		{"the new endpoint", e2, []string{onE1, onE2}, true},
		{"refused, both serve", refused, []string{onE1, onE2}, false},
		{"silence, both serve", silent, []string{onE1, onE2}, false},
		{"silence, the Service goes", silent, []string{onE1, gone}, true},
		{"silence, its endpoints go", silent, []string{onE1, closed}, true},
		{"answered, neither serves", e1, []string{closed, gone}, false},
		{"an endpoint that leaves while the policy changes", remote, []string{local, cluster}, true},
		{"an endpoint of the other pool", remote, []string{local, local}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var legal []*dataplane.Snapshot
			for _, text := range tt.states {
				state, err := ParseState(text)
				if err != nil {
					t.Fatal(err)
				}
				snapshot, err := state.Snapshot(dataplane.Empty())
				if err != nil {
					t.Fatal(err)
				}
				legal = append(legal, snapshot)
			}
			shot := Shot{From: "c", Flow: State{}.flow("c", netip.MustParseAddrPort("10.96.0.10:80"), dataplane.TCP)}
			if err := new(bed).judge(shot, tt.got, legal); (err == nil) != tt.legal {
				t.Errorf("judged %v, want legal %t", err, tt.legal)
			}
		})
	}
}

// TestModeThatLosesSources must lose them: it lacks just what it declares.
func TestModeThatLosesSources(t *testing.T) {
	state, err := ParseState("web TCP 80->8080 ips=10.96.0.10 endpoints=e1")
	if err != nil {
		t.Fatal(err)
	}
	want, err := state.Snapshot(dataplane.Empty())
	if err != nil {
		t.Fatal(err)
	}
	b := bed{cfg: Config{Mode: dataplane.Mode{Lacks: []dataplane.Capability{dataplane.KeepSource}}}}
	shot := Shot{From: "c", Flow: state.flow("c", netip.MustParseAddrPort("10.96.0.10:80"), dataplane.TCP)}
	legal := []*dataplane.Snapshot{want}
	if err := b.judge(shot, sighting("e1", "192.168.77.10:4", "10.244.1.11:8080"), legal); err != nil {
		t.Error(err)
	}
	if err := b.judge(shot, sighting("e1", "10.244.1.2:4", "10.244.1.11:8080"), legal); err == nil {
		t.Error("a source that is kept is legal")
	}
}
