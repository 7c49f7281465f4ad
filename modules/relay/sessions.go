package relay

import (
	"container/list"
	"net/netip"
	"sync"
)

// sessions holds the exchanges of datagrams of all listeners, the one used last
// in front.
type sessions struct {
	mu  sync.Mutex
	max int
	at  map[sessionKey]*list.Element
	lru *list.List
}

type sessionKey struct {
	listener *Listener
	client   netip.AddrPort
}

func newSessions(limit int) *sessions {
	return &sessions{max: limit, at: make(map[sessionKey]*list.Element), lru: list.New()}
}

// find returns a client's exchange, or nil.
func (t *sessions) find(l *Listener, client netip.AddrPort) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.at[sessionKey{l, client}]
	if !ok {
		return nil
	}
	t.lru.MoveToFront(e)
	return e.Value.(*session)
}

// add takes in an exchange; the oldest makes room. It refuses if the listener
// was closed meanwhile, or the client has one.
func (t *sessions) add(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := sessionKey{s.listener, s.client}
	select {
	case <-s.listener.closed:
		s.conn.Close()
		return false
	default:
	}
	if t.at[k] != nil {
		s.conn.Close()
		return false
	}
	t.at[k] = t.lru.PushFront(s)
	if t.lru.Len() > t.max {
		t.remove(t.lru.Back())
	}
	return true
}

// drop ends an exchange; it may have ended already.
func (t *sessions) drop(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.at[sessionKey{s.listener, s.client}]; e != nil && e.Value == s {
		t.remove(e)
	}
}

// end ends all exchanges that are over.
func (t *sessions) end(over func(*session) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.lru.Front(); e != nil; {
		next := e.Next()
		if over(e.Value.(*session)) {
			t.remove(e)
		}
		e = next
	}
}

func (t *sessions) remove(e *list.Element) {
	s := t.lru.Remove(e).(*session)
	delete(t.at, sessionKey{s.listener, s.client})
	s.conn.Close()
}
