package apisim

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Server is an API server on a loopback address.
type Server struct {
	http  *httptest.Server
	state *state
}

// New starts a server without objects.
func New() *Server {
	s := &Server{state: newState()}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

// Close ends all watches and stops the server.
func (s *Server) Close() {
	s.DropWatches()
	s.http.CloseClientConnections()
	s.http.Close()
}

// URL is where the server listens.
func (s *Server) URL() string { return s.http.URL }

// Config returns a client configuration without limits.
func (s *Server) Config() *rest.Config { return &rest.Config{Host: s.http.URL, QPS: -1} }

// Client returns a client.
func (s *Server) Client() (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(s.Config())
}

// Set adds or replaces objects.
func (s *Server) Set(objects ...runtime.Object) error {
	for _, o := range objects {
		if err := s.state.set(o); err != nil {
			return err
		}
	}
	return nil
}

// Delete removes objects; those that are not there are no error.
func (s *Server) Delete(objects ...runtime.Object) error {
	for _, o := range objects {
		if err := s.state.remove(o); err != nil {
			return err
		}
	}
	return nil
}

// DropWatches breaks the connections of all watches.
func (s *Server) DropWatches() {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.drop()
}

// Gap makes changes that no watch ever sees: it ends with all watches dropped
// and the history forgotten, so that who resumes is told 410 Gone.
func (s *Server) Gap(changes func() error) error {
	s.state.mu.Lock()
	s.state.dark = true
	s.state.mu.Unlock()
	err := changes()
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.dark = false
	s.state.forget()
	return err
}

// Hold keeps back all lists of a resource, such as "services", streamed ones
// included, until release is called.
func (s *Server) Hold(resource string) (release func()) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	c := make(chan struct{})
	s.state.held[resource] = c
	return func() {
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		delete(s.state.held, resource)
		close(c)
	}
}

// Absent makes the server not know a resource.
func (s *Server) Absent(resource string) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.absent[resource] = true
}

// RefuseStreams makes the server older than streamed lists: clients must list.
func (s *Server) RefuseStreams() {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.noStreams = true
}

// Fail answers the next n requests with 500.
func (s *Server) Fail(n int) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.failures = n
}

// List returns the stored objects of a resource as JSON, oldest first: what a
// client created can be looked at.
func (s *Server) List(resource string) []json.RawMessage {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	var found []*object
	for _, o := range s.state.objects {
		if o.resource.Resource == resource {
			found = append(found, o)
		}
	}
	var out []json.RawMessage
	for _, o := range inOrder(found) {
		out = append(out, o.json)
	}
	return out
}

// request is a path of the API taken apart.
type request struct {
	selector
	name string
}

func parsePath(path string) (r request, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		r.resource.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		r.resource.Group, r.resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return r, false
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		r.namespace, parts = parts[1], parts[2:]
	}
	r.resource.Resource = parts[0]
	if len(parts) == 2 {
		r.name = parts[1]
	}
	return r, len(parts) <= 2
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	q, ok := parsePath(r.URL.Path)
	if !ok {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	s.state.mu.Lock()
	absent, held := s.state.absent[q.resource.Resource], s.state.held[q.resource.Resource]
	failing := s.state.failures > 0
	if failing {
		s.state.failures--
	}
	streams := !s.state.noStreams
	s.state.mu.Unlock()
	var errLabels, errFields error
	q.labels, errLabels = labels.Parse(r.FormValue("labelSelector"))
	q.fields, errFields = fields.ParseSelector(r.FormValue("fieldSelector"))
	watching := r.FormValue("watch") == "true" || r.FormValue("watch") == "1"
	initial := r.FormValue("sendInitialEvents") == "true"
	if held != nil && r.Method == http.MethodGet && (!watching || initial) {
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case failing:
		fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case absent:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case initial && !streams:
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case errLabels != nil || errFields != nil:
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	case r.Method == http.MethodPost:
		s.create(w, r)
	case r.Method != http.MethodGet:
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	case q.name != "":
		s.get(w, q)
	case watching:
		s.watch(w, r, &q.selector, initial)
	default:
		s.list(w, &q.selector)
	}
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	answer(w, code, status(code, reason))
}

func status(code int, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "simulated: " + string(reason),
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client went away
}

func (s *Server) get(w http.ResponseWriter, q request) {
	s.state.mu.Lock()
	o := s.state.objects[q.resource.Resource+" "+q.namespace+"/"+q.name]
	s.state.mu.Unlock()
	if o == nil || o.resource != q.resource {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	answer(w, http.StatusOK, o.json)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err == nil {
		err = s.Set(o)
	}
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	answer(w, http.StatusCreated, o)
}

func (s *Server) list(w http.ResponseWriter, q *selector) {
	s.state.mu.Lock()
	found, revision := s.state.list(q), s.state.revision
	s.state.mu.Unlock()
	kind := kindOf(q.resource)
	items := make([]json.RawMessage, 0, len(found))
	for _, o := range found {
		items = append(items, o.json)
	}
	answer(w, http.StatusOK, map[string]any{
		"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(),
		"metadata": map[string]string{"resourceVersion": strconv.FormatUint(revision, 10)}, "items": items,
	})
}

// kindOf returns the kind of a resource.
func kindOf(r schema.GroupVersionResource) schema.GroupVersionKind {
	for kind := range scheme.Scheme.AllKnownTypes() {
		if kind.GroupVersion() == r.GroupVersion() && resourceOf(kind) == r {
			return kind
		}
	}
	return r.GroupVersion().WithKind("Unknown")
}
