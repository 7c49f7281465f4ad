package healthcheck

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// NodeState is what the Kubernetes API says of the node that asks whether it
// should get new traffic (KEP-3836).
type NodeState uint8

const (
	// NodeUnknown: the Node object has not been seen.
	NodeUnknown NodeState = iota
	// NodeEligible: nothing speaks against it.
	NodeEligible
	// NodeDeleting: the Node object is being deleted.
	NodeDeleting
	// NodeToBeDeleted: the cluster autoscaler is about to remove the node; it
	// has the taint ToBeDeletedByClusterAutoscaler.
	NodeToBeDeleted
)

// Config configures a Proxy.
type Config struct {
	// SyncPeriod is how often Services are programmed at least. A change that
	// is not in force after twice that time is a sign of trouble.
	SyncPeriod time.Duration
	// Families are those that the proxy serves, as far as is known at the start;
	// see [Proxy.SetFamilies].
	Families []dataplane.Family
	// Unapplied returns when the oldest change was accepted from the API that
	// is not in force yet in a family; false if there is none.
	Unapplied func(dataplane.Family) (time.Time, bool)
	// Answered, if not nil, is told of each answer: "/healthz" or "/livez", and
	// the status code.
	Answered func(path string, code int)
}

// A Proxy is the health of the proxy as a whole. As an [http.Handler] it
// answers /healthz and /livez and nothing else.
//
//   - Live: no accepted change has waited for longer than twice the sync period.
//     A process that has not begun yet, or has nothing to do, is live
//     (kubernetes#83498): to restart it would not help.
//   - Healthy: live, each family was programmed once, and the node may get new
//     traffic.
type Proxy struct {
	cfg     Config
	handler http.Handler

	mu       sync.Mutex
	families []dataplane.Family
	node     NodeState
	synced   map[dataplane.Family]time.Time
}

// NewProxy returns a Proxy of which nothing has been synced yet.
func NewProxy(cfg Config) *Proxy {
	p := &Proxy{cfg: cfg, families: cfg.Families, synced: make(map[dataplane.Family]time.Time)}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) { p.answer(w, r, p.healthz()) })
	mux.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) { p.answer(w, r, p.livez()) })
	p.handler = mux
	return p
}

// Synced notes that a family was programmed.
func (p *Proxy) Synced(f dataplane.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced[f] = time.Now()
}

// SetFamilies notes which families are served. Others need nothing to be
// healthy.
func (p *Proxy) SetFamilies(fs []dataplane.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.families = fs
}

// SetNode notes the state of the node.
func (p *Proxy) SetNode(n NodeState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = n
}

// Live tells whether the proxy keeps up.
func (p *Proxy) Live() bool { return p.livez().Healthy }

// Healthy tells whether the node should get new traffic.
func (p *Proxy) Healthy() bool { return p.healthz().Healthy }

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// status is the body of an answer, in the words of kube-proxy.
type status struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Healthy      bool      `json:"healthy"`
	// Families are told once they have been programmed, as kube-proxy 1.37 does.
	Families map[string]familyStatus `json:"status,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func (p *Proxy) livez() status { return p.programmed().finish() }

func (p *Proxy) healthz() status {
	s := p.programmed()
	eligible, all := p.told()
	s.NodeEligible = &eligible
	s.Healthy = s.Healthy && eligible && all
	return s.finish()
}

// told returns whether the node may get new traffic, and whether all families
// were programmed once.
func (p *Proxy) told() (eligible, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node == NodeEligible, !slices.ContainsFunc(p.families, func(f dataplane.Family) bool { return p.synced[f].IsZero() })
}

// finish lets the state of a proxy that is well count as current: clients of
// kube-proxy expect a time that moves although nothing has changed.
func (s status) finish() status {
	if s.Healthy && !s.LastUpdated.IsZero() {
		s.LastUpdated = s.CurrentTime
	}
	return s
}

// programmed tells of the families, and of nothing else.
func (p *Proxy) programmed() status {
	now := time.Now()
	s := status{CurrentTime: now, Healthy: true, Families: make(map[string]familyStatus)}
	for f, lastUpdated := range p.lastSyncs() {
		one := familyStatus{Healthy: p.keepsUp(f, now), LastUpdated: lastUpdated}
		s.Healthy = s.Healthy && one.Healthy
		if lastUpdated.IsZero() {
			continue
		}
		s.Families[f.String()] = one
		if lastUpdated.After(s.LastUpdated) {
			s.LastUpdated = lastUpdated
		}
	}
	return s
}

// keepsUp tells whether no change of a family waits for too long.
func (p *Proxy) keepsUp(f dataplane.Family, now time.Time) bool {
	since, waiting := p.cfg.Unapplied(f)
	return !waiting || now.Sub(since) <= 2*p.cfg.SyncPeriod
}

// lastSyncs returns when each family was last programmed; zero if it never was.
func (p *Proxy) lastSyncs() map[dataplane.Family]time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := make(map[dataplane.Family]time.Time, len(p.families))
	for _, f := range p.families {
		m[f] = p.synced[f]
	}
	return m
}

func (p *Proxy) answer(w http.ResponseWriter, r *http.Request, s status) {
	code := http.StatusOK
	if !s.Healthy {
		code = http.StatusServiceUnavailable
	}
	if p.cfg.Answered != nil {
		p.cfg.Answered(r.URL.Path, code)
	}
	writeJSON(w, code, s)
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the asker has left: nobody to tell
}
