package apisim

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// event is one message of a watch.
type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// watch streams changes that came after a revision, or, for a streamed list,
// all objects, a bookmark and then the changes. What it starts from is settled
// before it answers: who has the answer sees all that happens from then on.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q *selector, initial bool) {
	flush := func() { _ = http.NewResponseController(w).Flush() } // the client went away
	from, _ := strconv.ParseUint(r.FormValue("resourceVersion"), 10, 64)
	s.state.mu.Lock()
	dropped, gone := s.state.dropped, from != 0 && from < s.state.oldest
	var first []event
	switch {
	case gone && !initial:
		first = []event{{"ERROR", status(http.StatusGone, metav1.StatusReasonExpired)}}
	case initial || from == 0:
		for _, o := range s.state.list(q) {
			first = append(first, event{"ADDED", o.json})
		}
		from = s.state.revision
	}
	if initial {
		first = append(first, bookmark(q, from))
	}
	s.state.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	for _, e := range first {
		if out.Encode(e) != nil {
			return
		}
	}
	flush()
	if gone && !initial {
		return
	}
	s.stream(r, q, from, dropped, func(e event) bool {
		ok := out.Encode(e) == nil
		flush()
		return ok
	})
}

// stream sends changes until the client goes away, the watch is dropped or its
// time is over.
func (s *Server) stream(r *http.Request, q *selector, from uint64, dropped <-chan struct{}, send func(event) bool) {
	seconds, err := strconv.Atoi(r.FormValue("timeoutSeconds"))
	if err != nil {
		seconds = 3600
	}
	over := time.NewTimer(time.Duration(seconds) * time.Second)
	defer over.Stop()
	for {
		s.state.mu.Lock()
		events, more := s.state.after(from, q), s.state.changed
		if !s.state.dark {
			from = s.state.revision
		}
		s.state.mu.Unlock()
		for _, e := range events {
			if !send(e) {
				return
			}
		}
		select {
		case <-more:
		case <-dropped:
			panic(http.ErrAbortHandler) // no end of the body: the connection breaks
		case <-over.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// after lists what a selector sees of the changes after a revision: an object
// that it selects no longer is deleted for it.
func (s *state) after(revision uint64, q *selector) []event {
	if s.dark {
		return nil
	}
	var events []event
	for _, c := range s.history {
		if c.revision <= revision {
			continue
		}
		was, is := q.matches(c.old), q.matches(c.now)
		switch {
		case was && is:
			events = append(events, event{"MODIFIED", c.now.json})
		case is:
			events = append(events, event{"ADDED", c.now.json})
		case was:
			events = append(events, event{"DELETED", c.old.at(c.revision)})
		}
	}
	return events
}

// at returns an object as it was, at the revision of its end.
func (o *object) at(revision uint64) any {
	var content map[string]any
	if json.Unmarshal(o.json, &content) != nil {
		return o.json
	}
	if m, ok := content["metadata"].(map[string]any); ok {
		m["resourceVersion"] = strconv.FormatUint(revision, 10)
	}
	return content
}

func bookmark(q *selector, revision uint64) event {
	kind := kindOf(q.resource)
	return event{"BOOKMARK", map[string]any{
		"kind": kind.Kind, "apiVersion": kind.GroupVersion().String(),
		"metadata": map[string]any{
			"resourceVersion": strconv.FormatUint(revision, 10),
			"annotations":     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		},
	}}
}
