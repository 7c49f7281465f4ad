package healthcheck

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/portway/portway/modules/dataplane"
)

// Servers answer the healthCheckNodePorts of all Services, on the NodePort
// addresses of the node in the families of the Service: to the load balancer
// that asks there, 200 means that this node has an endpoint for its traffic.
//
// They are set by one goroutine.
type Servers struct {
	live   func() bool
	failed func(dataplane.ServiceName, netip.AddrPort, error)

	applied *dataplane.Snapshot
	open    map[site]*server
	failing map[site]bool
}

// site is where one Service is asked about.
type site struct {
	service dataplane.ServiceName
	addr    netip.AddrPort
}

// NewServers returns Servers that serve nothing yet. live tells whether the
// proxy keeps up; one that does not must not attract traffic. failed is told
// once when an address cannot be listened on; this is tried again with each
// Sync.
func NewServers(live func() bool, failed func(dataplane.ServiceName, netip.AddrPort, error)) *Servers {
	return &Servers{
		live: live, failed: failed,
		applied: dataplane.Empty(),
		open:    make(map[site]*server),
		failing: make(map[site]bool),
	}
}

// Sync makes the servers those of the snapshot. A server that is not wanted is
// closed, with its connections, when Sync returns. If nothing changed it costs
// next to nothing.
func (s *Servers) Sync(ctx context.Context, want *dataplane.Snapshot) {
	if len(s.failing) == 0 && want.HealthChecksEqual(s.applied) &&
		slices.Equal(want.Node().NodePortAddrs, s.applied.Node().NodePortAddrs) {
		s.applied = want
		return
	}
	s.applied = want
	wanted := sites(want)
	// Close first: a port may pass from one Service to another.
	for at, srv := range s.open {
		if _, ok := wanted[at]; !ok {
			srv.close()
			delete(s.open, at)
		}
	}
	for at := range s.failing {
		if _, ok := wanted[at]; !ok {
			delete(s.failing, at)
		}
	}
	for at, count := range wanted {
		s.set(ctx, at, count)
	}
}

// Close ends all servers.
func (s *Servers) Close() { s.Sync(context.Background(), dataplane.Empty()) }

// sites returns the number of local endpoints for each site.
func sites(want *dataplane.Snapshot) map[site]int {
	m := make(map[site]int)
	for name, h := range want.HealthChecks() {
		for _, a := range want.Node().NodePortAddrs {
			if f := dataplane.FamilyOf(a); h.Serves(f) {
				m[site{name, netip.AddrPortFrom(a, h.Port)}] = h.LocalReady(f)
			}
		}
	}
	return m
}

func (s *Servers) set(ctx context.Context, at site, count int) {
	srv, ok := s.open[at]
	if !ok {
		var err error
		if srv, err = s.listen(ctx, at); err != nil {
			if !s.failing[at] {
				s.failing[at] = true
				s.failed(at.service, at.addr, fmt.Errorf("serve the healthCheckNodePort of Service %s: %w", at.service, err))
			}
			return
		}
		delete(s.failing, at)
		s.open[at] = srv
	}
	srv.count.Store(int64(count))
}

// server is the answer at one site.
type server struct {
	service dataplane.ServiceName
	count   atomic.Int64
	live    func() bool
	http    *http.Server
	done    chan struct{}
}

func (s *Servers) listen(ctx context.Context, at site) (*server, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at.addr.String())
	if err != nil {
		return nil, err
	}
	srv := &server{service: at.service, live: s.live, done: make(chan struct{})}
	srv.http = newServer(srv)
	go func() {
		defer close(srv.done)
		_ = srv.http.Serve(l) // ends with close; errors of Accept that pass are retried in there
	}()
	return srv, nil
}

func (s *server) close() {
	_ = s.http.Close()
	<-s.done
}

// answer is the body of an answer, in the words of kube-proxy.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP answers on every path: load balancers ask on paths of their own.
func (s *server) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var a answer
	a.Service.Namespace, a.Service.Name = s.service.Namespace, s.service.Name
	a.LocalEndpoints, a.ServiceProxyHealthy = s.count.Load(), s.live()
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(a.LocalEndpoints, 10))
	code := http.StatusServiceUnavailable
	if a.LocalEndpoints > 0 && a.ServiceProxyHealthy {
		code = http.StatusOK
	}
	writeJSON(w, code, a)
}
