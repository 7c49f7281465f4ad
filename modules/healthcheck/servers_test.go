package healthcheck_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/healthcheck"
)

var (
	lo4     = netip.MustParseAddr("127.0.0.1")
	other4  = netip.MustParseAddr("127.0.0.2")
	lo6     = netip.MustParseAddr("::1")
	web     = dataplane.ServiceName{Namespace: "shop", Name: "web"}
	api     = dataplane.ServiceName{Namespace: "shop", Name: "api"}
	nodeAll = []netip.Addr{lo4, other4, lo6}
)

type reply struct {
	code   int
	header http.Header
	body   string
	err    error
}

func get(t *testing.T, url string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b), err}
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// freePort returns a port that is free on all addresses.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l := listen(t, ":0")
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// world is the servers with the snapshot that they were given last.
type world struct {
	t       *testing.T
	servers *healthcheck.Servers
	snap    *dataplane.Snapshot
	dead    atomic.Bool
	failed  []string
}

func newWorld(t *testing.T, addrs ...netip.Addr) *world {
	w := &world{t: t, snap: dataplane.Empty()}
	w.servers = healthcheck.NewServers(
		func() bool { return !w.dead.Load() },
		func(n dataplane.ServiceName, at netip.AddrPort, err error) {
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("failed with %v", err)
			}
			w.failed = append(w.failed, fmt.Sprintf("%s %s", n, at))
		})
	t.Cleanup(w.servers.Close)
	w.sync(func(b *dataplane.Builder) { b.SetNode(&dataplane.Node{NodePortAddrs: addrs}) })
	return w
}

func (w *world) sync(edit func(*dataplane.Builder)) {
	w.t.Helper()
	b := w.snap.Edit()
	edit(b)
	var err error
	if w.snap, err = b.Build(); err != nil {
		w.t.Fatal(err)
	}
	w.servers.Sync(w.t.Context(), w.snap)
}

func (w *world) put(n dataplane.ServiceName, h dataplane.HealthCheck) {
	w.t.Helper()
	w.sync(func(b *dataplane.Builder) { b.PutHealthCheck(n, h) })
}

func url(a netip.Addr, port uint16, path string) string {
	return "http://" + netip.AddrPortFrom(a, port).String() + path
}

func (w *world) refuses(a netip.Addr, port uint16) {
	w.t.Helper()
	if r := get(w.t, url(a, port, "/")); !errors.Is(r.err, syscall.ECONNREFUSED) {
		w.t.Errorf("%s:%d: %d, %v; want refused", a, port, r.code, r.err)
	}
}

// TestHealthCheckNodePortMatrix (kubernetes#44311, cilium#11043): the status
// follows this family's endpoints and the proxy, and nothing else.
// Proves S8.1, S8.2.
func TestHealthCheckNodePortMatrix(t *testing.T) {
	w := newWorld(t, nodeAll...)
	port := freePort(t)
	for _, c := range []struct {
		v4, v6 int
		dead   bool
		code4  int
		code6  int
	}{
		{0, 0, false, 503, 503},
		{1, 0, false, 200, 503},
		{0, 2, false, 503, 200},
		{3, 7, false, 200, 200},
		{3, 7, true, 503, 503},
		{0, 0, true, 503, 503},
		{1, 1, false, 200, 200},
	} {
		w.dead.Store(c.dead)
		w.put(web, dataplane.HealthCheck{Port: port, Serves4: true, Serves6: true, LocalReady4: c.v4, LocalReady6: c.v6})
		for _, a := range nodeAll {
			count, code := c.v4, c.code4
			if a == lo6 {
				count, code = c.v6, c.code6
			}
			for _, path := range []string{"/", "/healthz", "/any/where?x=1"} {
				t.Run(fmt.Sprintf("%+v %s%s", c, a, path), func(t *testing.T) {
					expect(t, get(t, url(a, port, path)), code, count, !c.dead)
				})
			}
		}
	}
}

func expect(t *testing.T, r reply, code, count int, live bool) {
	t.Helper()
	if r.err != nil {
		t.Fatal(r.err)
	}
	if r.code != code {
		t.Errorf("status %d, want %d", r.code, code)
	}
	if got := r.header.Get("X-Load-Balancing-Endpoint-Weight"); got != fmt.Sprint(count) {
		t.Errorf("weight %s, want %d", got, count)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %s", got)
	}
	var got, want any
	text := fmt.Sprintf(`{"service":{"namespace":"shop","name":"web"},"localEndpoints":%d,"serviceProxyHealthy":%v}`, count, live)
	if err := errors.Join(json.Unmarshal([]byte(r.body), &got), json.Unmarshal([]byte(text), &want)); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("body %s, want %s", r.body, text)
	}
}

// TestDeletedServiceIsSilentAtOnce (kubernetes PR 141272): the answer of a
// Service that is gone must not go on, not even over an open connection.
// Proves S8.3, kubernetes#141272.
func TestDeletedServiceIsSilentAtOnce(t *testing.T) {
	w := newWorld(t, lo4, lo6)
	port := freePort(t)
	w.put(web, dataplane.HealthCheck{Port: port, Serves4: true, Serves6: true, LocalReady4: 1, LocalReady6: 1})
	expect(t, get(t, url(lo4, port, "/")), 200, 1, true) // leaves a connection open
	w.put(web, dataplane.HealthCheck{})
	w.refuses(lo4, port)
	w.refuses(lo6, port)
}

// Proves S8.3.
func TestPortChanges(t *testing.T) {
	w := newWorld(t, lo4)
	before, after := freePort(t), freePort(t)
	w.put(web, dataplane.HealthCheck{Port: before, Serves4: true, Serves6: true, LocalReady4: 1})
	w.put(web, dataplane.HealthCheck{Port: after, Serves4: true, Serves6: true, LocalReady4: 2})
	w.refuses(lo4, before)
	expect(t, get(t, url(lo4, after, "/")), 200, 2, true)
}

// TestPortPassesToAnotherService (kubernetes#97225): in one step, in which the
// old owner's server must not be in the new one's way.
func TestPortPassesToAnotherService(t *testing.T) {
	w := newWorld(t, lo4)
	first, second := freePort(t), freePort(t)
	w.put(api, dataplane.HealthCheck{Port: first, Serves4: true, Serves6: true})
	w.put(web, dataplane.HealthCheck{Port: second, Serves4: true, Serves6: true, LocalReady4: 1})
	w.sync(func(b *dataplane.Builder) {
		b.PutHealthCheck(api, dataplane.HealthCheck{Port: second, Serves4: true, Serves6: true})
		b.PutHealthCheck(web, dataplane.HealthCheck{Port: first, Serves4: true, Serves6: true, LocalReady4: 4})
	})
	expect(t, get(t, url(lo4, first, "/")), 200, 4, true)
	if r := get(t, url(lo4, second, "/")); r.code != 503 {
		t.Errorf("the other Service answers %d, %v", r.code, r.err)
	}
	if w.failed != nil {
		t.Errorf("failed: %v", w.failed)
	}
}

// TestAddressesFollowTheNode: a NodePort address that comes is served, one that
// goes is not, and the rest is left alone.
// Proves S8.3.
func TestAddressesFollowTheNode(t *testing.T) {
	w := newWorld(t, lo4)
	port := freePort(t)
	w.put(web, dataplane.HealthCheck{Port: port, Serves4: true, Serves6: true, LocalReady4: 1})
	w.refuses(other4, port)
	w.sync(func(b *dataplane.Builder) { b.SetNode(&dataplane.Node{NodePortAddrs: []netip.Addr{lo4, other4}}) })
	expect(t, get(t, url(lo4, port, "/")), 200, 1, true)
	expect(t, get(t, url(other4, port, "/")), 200, 1, true)
	w.sync(func(b *dataplane.Builder) { b.SetNode(&dataplane.Node{NodePortAddrs: []netip.Addr{other4}}) })
	w.refuses(lo4, port)
	expect(t, get(t, url(other4, port, "/")), 200, 1, true)
}

// TestPortInUse: a port that somebody else holds is reported once, tried again
// with each Sync, also one in which nothing changed, and harms no other.
// Proves S8.3.
func TestPortInUse(t *testing.T) {
	w := newWorld(t, lo4, other4)
	taken, free := freePort(t), freePort(t)
	stranger := listen(t, netip.AddrPortFrom(lo4, taken).String())
	w.put(web, dataplane.HealthCheck{Port: taken, Serves4: true, Serves6: true, LocalReady4: 1})
	w.put(api, dataplane.HealthCheck{Port: free, Serves4: true, Serves6: true, LocalReady4: 1})
	w.sync(func(*dataplane.Builder) {})
	if want := fmt.Sprintf("[shop/web 127.0.0.1:%d]", taken); fmt.Sprint(w.failed) != want {
		t.Errorf("failed: %v, want %s", w.failed, want)
	}
	expect(t, get(t, url(other4, taken, "/")), 200, 1, true)
	if r := get(t, url(lo4, free, "/")); r.code != 200 {
		t.Errorf("the other Service answers %d, %v", r.code, r.err)
	}
	if err := stranger.Close(); err != nil {
		t.Fatal(err)
	}
	w.sync(func(*dataplane.Builder) {})
	expect(t, get(t, url(lo4, taken, "/")), 200, 1, true)
}

// TestFamiliesOfTheService: where a Service has no address nobody answers for
// it, and a family that it gets is served.
func TestFamiliesOfTheService(t *testing.T) {
	w := newWorld(t, lo4, lo6)
	port := freePort(t)
	w.put(web, dataplane.HealthCheck{Port: port, Serves6: true, LocalReady6: 1})
	w.refuses(lo4, port)
	expect(t, get(t, url(lo6, port, "/")), 200, 1, true)
	w.put(web, dataplane.HealthCheck{Port: port, Serves4: true, Serves6: true, LocalReady6: 1})
	expect(t, get(t, url(lo4, port, "/")), 503, 0, true)
	w.put(web, dataplane.HealthCheck{Port: port, Serves4: true, LocalReady4: 2})
	w.refuses(lo6, port)
	expect(t, get(t, url(lo4, port, "/")), 200, 2, true)
}

func TestCloseEndsAll(t *testing.T) {
	w := newWorld(t, lo4, lo6)
	port := freePort(t)
	w.put(web, dataplane.HealthCheck{Port: port, Serves4: true, Serves6: true, LocalReady4: 1})
	w.servers.Close()
	w.refuses(lo4, port)
	w.refuses(lo6, port)
}

// BenchmarkUnchanged is what a Sync costs in which no health check changes.
func BenchmarkUnchanged(b *testing.B) {
	s := healthcheck.NewServers(func() bool { return true }, func(_ dataplane.ServiceName, at netip.AddrPort, err error) {
		b.Errorf("%s: %v", at, err)
	})
	defer s.Close()
	build := dataplane.Empty().Edit()
	for i := range 1000 {
		// No NodePort addresses, so no sockets.
		build.PutHealthCheck(dataplane.ServiceName{Namespace: "n", Name: fmt.Sprint(i)}, dataplane.HealthCheck{Port: uint16(30000 + i), Serves4: true, Serves6: true})
	}
	snap, err := build.Build()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.Sync(b.Context(), snap)
	}
}
