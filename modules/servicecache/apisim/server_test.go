package apisim

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

func start(t *testing.T) (*Server, kubernetes.Interface) {
	t.Helper()
	s := New()
	t.Cleanup(s.Close)
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

func pod(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"version": version}}}
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// next returns the next event as "TYPE name", or "closed".
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "closed"
		}
		if p, ok := e.Object.(*corev1.Pod); ok {
			return string(e.Type) + " " + p.Name
		}
		return string(e.Type) + " " + apierrors.FromObject(e.Object).Error()
	case <-time.After(time.Minute):
		t.Fatal("no event")
		return ""
	}
}

func expectEvents(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	for _, e := range want {
		if got := next(t, w); got != e {
			t.Errorf("event %q, want %q", got, e)
		}
	}
}

func names(t *testing.T, client kubernetes.Interface, o metav1.ListOptions) (string, string) {
	t.Helper()
	list, err := client.CoreV1().Pods("ns").List(t.Context(), o)
	do(t, err)
	var ns []string
	for _, p := range list.Items {
		ns = append(ns, p.Name)
	}
	return strings.Join(ns, " "), list.ResourceVersion
}

func TestListAndSelect(t *testing.T) {
	s, client := start(t)
	other := pod("d", "1")
	other.Namespace = "other"
	do(t, s.Set(pod("b", "1"), pod("a", "2"), other), s.Set(pod("b", "2")), s.Delete(pod("c", "1")))
	for o, want := range map[metav1.ListOptions]string{
		{}:                                 "b a",
		{LabelSelector: "version=2"}:       "b a",
		{LabelSelector: "version!=2"}:      "",
		{FieldSelector: "metadata.name=a"}: "a",
	} {
		if got, _ := names(t, client, o); got != want {
			t.Errorf("%+v selects %q, want %q", o, got, want)
		}
	}
	if _, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{LabelSelector: "=!"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a bad selector: %v", err)
	}
}

func TestGetAndCreate(t *testing.T) {
	s, client := start(t)
	if _, err := client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Pod that is not there: %v", err)
	}
	_, err := client.CoreV1().Pods("ns").Create(t.Context(), pod("a", "1"), metav1.CreateOptions{})
	do(t, err)
	got, err := client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{})
	if do(t, err); got.Labels["version"] != "1" || got.ResourceVersion == "" {
		t.Errorf("got %+v", got)
	}
	if n := len(s.List("pods")); n != 1 {
		t.Errorf("%d pods, want 1", n)
	}
	s.Absent("pods")
	if _, err := client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an unknown resource: %v", err)
	}
	s.Fail(1)
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("a failure: %v", err)
	}
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("after the failure: %v", err)
	}
}

// An object that a watch selects no longer is deleted for it, and one that it
// begins to select is added.
func TestWatchSelects(t *testing.T) {
	s, client := start(t)
	do(t, s.Set(pod("a", "1"), pod("b", "2")))
	_, version := names(t, client, metav1.ListOptions{})
	w, err := client.CoreV1().Pods("ns").Watch(t.Context(), metav1.ListOptions{LabelSelector: "version=1", ResourceVersion: version})
	do(t, err)
	do(t, s.Set(pod("a", "2"), pod("b", "3"), pod("b", "1"), pod("b", "1")), s.Delete(pod("b", "1")), s.Set(pod("c", "1")))
	expectEvents(t, w, "DELETED a", "ADDED b", "MODIFIED b", "DELETED b", "ADDED c")
	s.DropWatches()
	expectEvents(t, w, "closed")
}

func TestStreamedList(t *testing.T) {
	s, client := start(t)
	do(t, s.Set(pod("a", "1"), pod("b", "1")))
	o := metav1.ListOptions{SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	w, err := client.CoreV1().Pods("ns").Watch(t.Context(), o)
	do(t, err)
	expectEvents(t, w, "ADDED a", "ADDED b", "BOOKMARK ")
	do(t, s.Set(pod("c", "1")))
	expectEvents(t, w, "ADDED c")
	s.RefuseStreams()
	if _, err := client.CoreV1().Pods("ns").Watch(t.Context(), o); !apierrors.IsInvalid(err) {
		t.Errorf("a stream that is refused: %v", err)
	}
}

// Who watched through a gap sees none of it, and is told so when he resumes.
func TestGap(t *testing.T) {
	s, client := start(t)
	do(t, s.Set(pod("a", "1")))
	_, version := names(t, client, metav1.ListOptions{})
	w, err := client.CoreV1().Pods("ns").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	do(t, err)
	do(t, s.Gap(func() error { return s.Delete(pod("a", "1")) }))
	expectEvents(t, w, "closed")
	w, err = client.CoreV1().Pods("ns").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	do(t, err)
	expectEvents(t, w, "ERROR simulated: Expired", "closed")
	if got, _ := names(t, client, metav1.ListOptions{}); got != "" {
		t.Errorf("pods %q after the gap", got)
	}
}

func TestHold(t *testing.T) {
	s, client := start(t)
	release := s.Hold("pods")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("a list that is held back came")
	}
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another resource: %v", err)
	}
	release()
	if _, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("after the release: %v", err)
	}
}
