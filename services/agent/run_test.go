package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/servicecache/apisim"
	"github.com/portway/portway/services/agent/config"
	"github.com/portway/portway/services/agent/kernel"
)

// fickle is a plane that fails, or leaves every port out, when it is told to.
type fickle struct {
	plane
	broken, picky, closed atomic.Bool
}

func (p *fickle) Sync(ctx context.Context, r dataplane.SyncRequest) (dataplane.Report, error) {
	if p.broken.Load() {
		return dataplane.Report{}, errors.New("the kernel says no")
	}
	report, err := p.plane.Sync(ctx, r)
	if p.picky.Load() {
		for sp := range r.Want.ServicePorts() {
			report.Failed = append(report.Failed, dataplane.Failure{Name: sp.Name, Err: errors.New("not this one")})
		}
	}
	return report, err
}

func (p *fickle) Close() error { p.closed.Store(true); return nil }

// startAgent runs an agent with a plane, an API server that knows its Node and
// one Service, and no ports. There are other modes, which are not in use.
func startAgent(t *testing.T, p *fickle, others ...dataplane.Mode) (a *agent, api *apisim.Server, stop func() error) {
	t.Helper()
	api = apisim.New()
	t.Cleanup(api.Close)
	client, err := api.Client()
	if err != nil {
		t.Fatal(err)
	}
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if err := api.Set(node("192.168.77.10"), web); err != nil {
		t.Fatal(err)
	}
	opts := config.NewOptions()
	opts.Proxy.HealthzBindAddress, opts.Proxy.MetricsBindAddress = "", ""
	opts.Proxy.IPTables.SyncPeriod.Duration, opts.Proxy.IPTables.MinSyncPeriod.Duration = 200*time.Millisecond, time.Millisecond
	opts.Agent.Socket = filepath.Join(t.TempDir(), "s")
	mode := able("test", v4)
	mode.Open = func(context.Context, dataplane.Family) (dataplane.Plane, error) { return p, nil }
	mode.Lacks = []dataplane.Capability{dataplane.KeepFlows} // no kernel, no flows
	a = &agent{
		opts: opts, log: discard(), node: "n1", client: client, machine: kernel.Machine{Root: t.TempDir()}, started: time.Now(),
		chooser: &chooser{modes: append(others, mode), kernel: []dataplane.Family{v4}, proxy: "test", log: discard()},
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := a.prepare(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx) }()
	return a, api, func() error { cancel(); return <-ended }
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit:
			t.Fatalf("not so in 20 seconds: %s", what)
		case <-tick.C:
		}
	}
}

// told tells whether an Event has reached the API server.
func told(api *apisim.Server, reason, word string) bool {
	for _, raw := range api.List("events") {
		var e eventsv1.Event
		if json.Unmarshal(raw, &e) == nil && e.Reason == reason && strings.Contains(e.Note, word) {
			return true
		}
	}
	return false
}

// TestPlaneThatFails: nothing is healthy before the first good Sync, what waits
// too long is not live, and all is well once the kernel takes it.
// Proves S8.4, S8.5.
func TestPlaneThatFails(t *testing.T) {
	p := new(fickle)
	p.broken.Store(true)
	a, _, stop := startAgent(t, p)
	eventually(t, "a change waits too long", func() bool { return !a.health.Live() })
	if a.health.Healthy() {
		t.Error("healthy before the first good Sync")
	}
	p.broken.Store(false)
	eventually(t, "the agent is healthy", a.health.Healthy)
	if !a.health.Live() {
		t.Error("healthy and not live")
	}
	if err := stop(); err != nil || !p.closed.Load() {
		t.Errorf("stopped with %v; closed: %v", err, p.closed.Load())
	}
}

// TestPortThatFails: it is told to its owner, and nobody else suffers.
// Proves S8.6, S9.2.
func TestPortThatFails(t *testing.T) {
	p := new(fickle)
	p.picky.Store(true)
	a, api, stop := startAgent(t, p)
	eventually(t, "an Event on the Service", func() bool { return told(api, "FailedToProgram", "not this one") })
	eventually(t, "the agent is healthy", a.health.Healthy)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestNodeIsDrained: a Node that is about to go gets no new traffic.
// Proves S8.5.
func TestNodeIsDrained(t *testing.T) {
	a, api, stop := startAgent(t, new(fickle))
	eventually(t, "the agent is healthy", a.health.Healthy)
	doomed := node("192.168.77.10")
	doomed.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	if err := api.Set(doomed); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is not healthy", func() bool { return !a.health.Healthy() })
	if !a.health.Live() {
		t.Error("not live, although it works")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestNoPlane: a mode that does not open is the end, with its reason.
func TestNoPlane(t *testing.T) {
	a := &agent{log: discard()}
	mode := able("test", v4)
	_, err := a.open(t.Context(), choice{mode: mode, families: []dataplane.Family{v4}})
	if err == nil || fmt.Sprint(err) != "not opened" {
		t.Errorf("error %v", err)
	}
}
