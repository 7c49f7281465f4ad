package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

var (
	agreeFor  = flag.Duration("budget", 15*time.Second, "time for states that all modes must agree on; more finds more")
	agreeSeed = flag.Uint64("seed", 0, "the state to begin with, as a failure names it; 0 is one by chance")
)

// TestModesAgree is law 7: an agent for each mode that this kernel runs, each on
// a node of its own with the same objects in the API server. What they read from
// their kernels about a flow is the same, and packets end where the model of the
// laws, which shares no code with the agent's decisions, says.
// Proves S9.8.
func TestModesAgree(t *testing.T) {
	modes := usableModes(t)
	seed := *agreeSeed
	if seed == 0 {
		seed = rand.Uint64N(1 << 31)
	}
	for start := time.Now(); time.Since(start) < *agreeFor; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { agreeOn(t, modes, seed) })
		if t.Failed() {
			return
		}
	}
}

// agreeOn takes all modes through the same walk of states.
func agreeOn(t *testing.T, modes []dataplane.Mode, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 0))
	state := plain(dataplanetest.States().Example(int(seed)))
	runs := make([]*modeRun, len(modes))
	for i, m := range modes {
		runs[i] = startRun(t, m, state)
	}
	for step := range 3 {
		want, err := state.Snapshot(dataplane.Empty())
		if err != nil {
			t.Fatal(err)
		}
		all := dataplanetest.Shots(state, want)
		dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, r := range runs {
			r.become(state, step)
			for _, err := range dataplanetest.Misled(t, r.rig, r.mode, want, all[:min(len(all), 150)]) {
				t.Errorf("%s: %v", r.mode.Name, err)
			}
		}
		for _, shot := range all[:min(len(all), 40)] {
			first := runs[0].explain(shot)
			for _, r := range runs[1:] {
				if other := r.explain(shot); !reflect.DeepEqual(first, other) {
					t.Errorf("%s\n%s mode: %q\n%s mode: %q", shot, modes[0].Name, first, r.mode.Name, other)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("step %d of seed %d, with\n%s", step, seed, state)
		}
		next := plain(dataplanetest.Successor(state).Example(int(seed) + step))
		next.NodePorts = state.NodePorts // a flag of the agent
		state = next
	}
}

// plain leaves out what Kubernetes' objects cannot say.
func plain(s dataplanetest.State) dataplanetest.State {
	s.Services = slices.Clone(s.Services)
	for i, svc := range s.Services {
		s.Services[i].Endpoints = slices.Clone(svc.Endpoints)
		for j := range svc.Endpoints {
			s.Services[i].Endpoints[j].Weight = 1
		}
	}
	return s
}

// modeRun is the agent in one mode.
type modeRun struct {
	*site
	mode dataplane.Mode
	has  []runtime.Object
}

func startRun(t *testing.T, m dataplane.Mode, s dataplanetest.State) *modeRun {
	r := &modeRun{site: newSiteOf(t, s.RigOptions()), mode: m}
	dataplanetest.Serve(t, r.rig)
	node := thisNode()
	for _, a := range []netip.Addr{rig.Alias4, rig.Alias6} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a.String()})
	}
	r.set(node, ranges())
	r.start(append(flagsOf(s), "--proxy-mode="+m.Name, "--mode-fallback=error", "--iptables-min-sync-period=10ms")...)
	return r
}

// become makes a state that of the API server, and waits until the agent has
// applied it: until a last Service, which comes after all others in both streams
// of objects, works in both families.
func (r *modeRun) become(s dataplanetest.State, step int) {
	r.t.Helper()
	last := dataplanetest.Service{
		Name: "last", Protocol: dataplane.TCP, Port: uint16(1000 + step), TargetPort: uint16(9000 + step),
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.255.250"), netip.MustParseAddr("fd00:96::fffa")},
		Endpoints:  []dataplanetest.Backend{{Host: "e1", Weight: 1}},
	}
	if err := r.api.Delete(r.has...); err != nil {
		r.t.Fatal(err)
	}
	r.has = objectsOf(s)
	r.set(r.has...)
	r.set(objectsOf(dataplanetest.State{Services: []dataplanetest.Service{last}})...)
	for _, ip := range last.ClusterIPs {
		want := []string{"forward " + netip.AddrPortFrom(r.rig.Endpoints[0].Addr(ip), last.TargetPort).String()}
		flow := dataplane.Flow{
			Src: netip.AddrPortFrom(r.rig.Client.Addr(ip), 40000), Dst: netip.AddrPortFrom(ip, last.Port), Protocol: dataplane.TCP, InInterface: "vethc",
		}
		r.eventually("the agent has applied the state", func() (bool, string) {
			ends, err := r.endsOf(flow)
			return slices.Equal(ends, want), fmt.Sprint(ends, err)
		})
	}
}

// explain tells the ends that the agent reads from its kernel for a flow, which
// must be those that it wants.
func (r *modeRun) explain(s dataplanetest.Shot) []string {
	r.t.Helper()
	ends, err := r.endsOf(s.Flow)
	if err != nil {
		r.t.Errorf("%s mode: %s: %v", r.mode.Name, s, err)
	}
	return ends
}

func (r *modeRun) endsOf(f dataplane.Flow) (ends []string, err error) {
	q := url.Values{"proto": {f.Protocol.String()}, "src": {f.Src.String()}, "dst": {f.Dst.String()}, "iface": {f.InInterface}}
	code, body := r.get(local + "/explain?" + q.Encode())
	var answer struct {
		Planes []struct {
			Does []struct {
				Action, Endpoint string
			}
			Agree               bool
			Disagreement, Error string
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Planes) != 1 {
		return nil, fmt.Errorf("it answers %d %s", code, body)
	}
	plane := answer.Planes[0]
	for _, o := range plane.Does {
		ends = append(ends, strings.TrimSpace(o.Action+" "+o.Endpoint))
	}
	slices.Sort(ends)
	if !plane.Agree {
		return ends, fmt.Errorf("%s%s", plane.Disagreement, plane.Error)
	}
	return slices.Compact(ends), nil
}
