package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/portway/portway/modules/dataplane"
)

func node(addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// lines are what was logged since they were last taken.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// TestAwaitNode walks through what a Node may lack, and what is said of it.
func TestAwaitNode(t *testing.T) {
	withCIDR := node("10.0.0.1")
	withCIDR.Spec.PodCIDR = "10.244.0.0/24"
	nodes := schema.GroupResource{Resource: "nodes"}
	stages := []struct {
		node *corev1.Node
		err  error
		said string
	}{
		{nil, errors.New("connection refused"), "the API server cannot be asked: connection refused"},
		{nil, apierrors.NewForbidden(nodes, "n1", errors.New("no")), "the API server refuses to show it"},
		{nil, apierrors.NewNotFound(nodes, "n1"), "there is no Node n1 yet"},
		{node(), nil, "it has no address yet"},
		{node("10.0.0.1"), nil, "it has no spec.podCIDR yet"},
		{withCIDR, nil, ""},
	}
	synctest.Test(t, func(t *testing.T) {
		var stage atomic.Int32
		client := fake.NewClientset()
		client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if err := stages[stage.Load()].err; err != nil {
				return true, nil, err
			}
			return true, stages[stage.Load()].node, nil
		})
		log := new(lines)
		found := make(chan *corev1.Node, 1)
		go func() {
			n, err := awaitNode(t.Context(), client, "n1", true, slog.New(slog.NewTextHandler(log, nil)))
			if err != nil {
				t.Error(err)
			}
			found <- n
		}()
		for ; stage.Load() < int32(len(stages)-1); stage.Add(1) {
			<-time.After(2*time.Minute + time.Millisecond)
			synctest.Wait()
			want, all := stages[stage.Load()].said, log.take()
			if n := strings.Count(all, want); n < 2 || n > 3 {
				t.Errorf("in two minutes it said %d times %q:\n%s", n, want, all)
			}
		}
		if n := <-found; n != withCIDR {
			t.Errorf("found %v", n)
		}
	})
}

func TestNodeWithoutPodCIDRWillDoWhereNobodyAsks(t *testing.T) {
	if s := nodeLacks(node("10.0.0.1"), false); s != "" {
		t.Error(s)
	}
}

func TestNodeFamilies(t *testing.T) {
	external := node("fd00::1")
	external.Status.Addresses = append(external.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: "10.0.0.9"},
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "garbage"})
	have := nodeFamilies(external)
	if len(have) != 2 || have[0] != dataplane.IPv6 || have[1] != dataplane.IPv4 {
		t.Errorf("families %v, want IPv6 and IPv4", have)
	}
}
