package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/servicecache"
)

// teller makes Events of what owners of Services and nodes ought to know. The
// recorder joins those that repeat into one.
type teller struct {
	recorder events.EventRecorder
	node     *corev1.ObjectReference

	mu      sync.Mutex
	failing map[failure]bool // told, and still so
}

// failure is a Service port that a plane, by name, cannot program.
type failure struct {
	port  dataplane.ServicePortName
	plane string
}

func newTeller(ctx context.Context, client kubernetes.Interface, node string) (*teller, error) {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start recording Events: %w", err)
	}
	return &teller{
		recorder: b.NewRecorder(scheme.Scheme, "portway"),
		node:     &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node},
		failing:  make(map[failure]bool),
	}, nil
}

// started is the first Event of a node's agent.
func (t *teller) started() {
	t.recorder.Eventf(t.node, nil, corev1.EventTypeNormal, "Starting", "StartPortway", "Portway %s", release)
}

func (t *teller) fellBack(c choice) {
	t.recorder.Eventf(t.node, nil, corev1.EventTypeWarning, "ProxyModeFallback", "StartPortway",
		"The proxy mode %s cannot run on this node, %s is used instead: %s", c.wanted, c.mode.Name, c.because)
}

func (t *teller) serverFailed(err error) {
	t.recorder.Eventf(t.node, nil, corev1.EventTypeWarning, "FailedToListen", "StartPortway", "%v", err)
}

func (t *teller) problem(p servicecache.Problem) {
	o := &p.Object
	if o.Name == "" {
		return
	}
	ref := &corev1.ObjectReference{Kind: o.Kind, APIVersion: o.APIVersion, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
	t.recorder.Eventf(ref, t.node, corev1.EventTypeWarning, string(p.Reason), "SyncService", "%s: %s", p.Field, p.Message)
}

func (t *teller) cannotListen(n dataplane.ServiceName, at netip.AddrPort, err error) {
	t.recorder.Eventf(service(n), t.node, corev1.EventTypeWarning, "FailedToStartServiceHealthcheck", "Listen",
		"healthCheckNodePort at %s: %v", at, err)
}

// synced tells once of each Service port that cannot be programmed, and again
// only after it could.
func (t *teller) synced(res dataplane.SyncResult) {
	if res.Err != nil {
		return // nothing is known about single ports
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := make(map[failure]bool)
	for _, f := range res.Report.Failed {
		k := failure{f.Name, res.Plane.Name}
		now[k] = true
		if !t.failing[k] {
			t.failing[k] = true
			t.recorder.Eventf(service(f.Name.Service()), t.node, corev1.EventTypeWarning, "FailedToProgram", "SyncService",
				"%s: the port %s cannot be programmed: %v", res.Plane.Name, f.Name, f.Err)
		}
	}
	for k := range t.failing {
		if k.plane == res.Plane.Name && !now[k] {
			delete(t.failing, k)
		}
	}
}

// maxNamed is how many objects one Event names.
const maxNamed = 5

// repaired tells that somebody else changes what is ours. The recorder counts
// those that follow instead of repeating them.
func (t *teller) repaired(res dataplane.SyncResult) {
	all := res.Report.Repaired
	if len(all) == 0 {
		return
	}
	names := make([]string, 0, maxNamed)
	for _, d := range all[:min(len(all), maxNamed)] {
		names = append(names, d.Object)
	}
	more := ""
	if n := len(all) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	t.recorder.Eventf(t.node, nil, corev1.EventTypeWarning, "ServiceRulesRepaired", "SyncService",
		"%s: somebody else had changed %s%s", res.Plane.Name, strings.Join(names, "; "), more)
}

func service(n dataplane.ServiceName) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: n.Namespace, Name: n.Name}
}
