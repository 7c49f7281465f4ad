package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/servicecache"
)

// plane is one that remembers: it does what it was last asked for, or with a
// fault something else.
type plane struct {
	applied *dataplane.Snapshot
	fault   error
	reject  bool
	repairs []dataplane.Difference
}

func (p *plane) Sync(_ context.Context, r dataplane.SyncRequest) (dataplane.Report, error) {
	if p.fault != nil {
		return dataplane.Report{}, p.fault
	}
	p.applied = r.Want
	return dataplane.Report{Full: r.Distrust, Repaired: p.repairs}, nil
}

func (p *plane) Audit(context.Context, *dataplane.Snapshot) ([]dataplane.Difference, error) {
	if p.reject {
		return []dataplane.Difference{{Object: "chain X", Want: "forward", Have: "reject"}}, p.fault
	}
	return nil, p.fault
}

func (p *plane) Explain(_ context.Context, f dataplane.Flow) (dataplane.Explanation, error) {
	v := p.applied.Decide(f)
	if p.reject || v.Action != dataplane.Forward {
		o := dataplane.Outcome{Action: dataplane.Reject, Probability: 1, Steps: []dataplane.Step{{Object: "chain X", Detail: "-j REJECT"}}}
		return dataplane.Explanation{Outcomes: []dataplane.Outcome{o}}, p.fault
	}
	var e dataplane.Explanation
	for _, ep := range v.Pool.Endpoints {
		e.Outcomes = append(e.Outcomes, dataplane.Outcome{Action: dataplane.Forward, Endpoint: ep.Addr, Probability: 1})
	}
	return e, p.fault
}

func (p *plane) Close() error { return nil }

// shop is a snapshot with one Service port, on 10.96.0.10:80.
func shop(t *testing.T) *dataplane.Snapshot {
	t.Helper()
	pool := &dataplane.Pool{Family: v4, Endpoints: []dataplane.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Weight: 1, Local: true}}}
	r := dataplane.Route{Action: dataplane.Forward, Pool: pool}
	b := dataplane.Empty().Edit()
	b.SetNode(&dataplane.Node{Name: "n1", PrimaryIPs: []netip.Addr{netip.MustParseAddr("192.168.77.10")}})
	b.Put(&dataplane.ServicePort{
		Name:  dataplane.ServicePortName{Namespace: "shop", Name: "web", Port: "http", Protocol: dataplane.TCP},
		Pools: []*dataplane.Pool{pool},
		Frontends: []*dataplane.Frontend{{
			Family: v4, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Routes: [3]dataplane.Route{r, r, r},
		}},
	})
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// askable is a local API with a plane behind it that has applied the shop.
func askable(t *testing.T, p *plane, lacks ...dataplane.Capability) *localAPI {
	t.Helper()
	synced := make(chan struct{}, 10)
	r := dataplane.NewReconciler(dataplane.ReconcilerConfig{
		Planes: []dataplane.NamedPlane{{Name: "test IPv4", Family: v4, Plane: p}},
		OnSync: func(dataplane.SyncResult) { synced <- struct{}{} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	a := &localAPI{
		reconciler: r, published: new(atomic.Pointer[dataplane.Snapshot]), mode: dataplane.Mode{Name: "test", Lacks: lacks},
		config: servicecache.Config{NodeName: "n1", MasqueradeBit: 14},
		local: func() servicecache.Local {
			return servicecache.Local{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.77.10/24")}}
		},
		reasons: func(context.Context, dataplane.Verdict) (dataplane.Reasons, bool, error) {
			return dataplane.Reasons{
				Policy: "internalTrafficPolicy Cluster", Choice: "ready endpoints",
				Endpoints: []dataplane.Considered{
					{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Slice: "web-1", Ready: true, Serving: true, Local: true, In: true, Why: "ready"},
					{Addr: netip.MustParseAddrPort("10.244.2.11:8080"), Slice: "web-1", Why: "it is not ready"},
				},
			}, true, nil
		},
		toward: func(netip.Addr) (string, error) { return "vethc", nil },
	}
	a.published.Store(shop(t))
	r.Publish(a.published.Load())
	<-synced
	return a
}

func ask(a *localAPI, path string) (int, string) { return call(a, http.MethodGet, path) }

func call(a *localAPI, method, path string) (int, string) {
	w := httptest.NewRecorder()
	a.handler().ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), method, path, nil))
	return w.Code, w.Body.String()
}

// TestExplainAnswer holds the words that portwayctl reads.
func TestExplainAnswer(t *testing.T) {
	const question = "/explain?proto=tcp&src=10.244.1.2:5000&dst=10.96.0.10:80"
	const head = `{"flow":"TCP 10.244.1.2:5000 -> 10.96.0.10:80 from vethc","planes":[{"plane":"test IPv4",` +
		`"should":{"action":"forward","origin":"outside","reason":"Cluster endpoints","service":"shop/web","servicePort":"shop/web:http/TCP",` +
		`"frontend":{"kind":"ClusterIP","address":"10.96.0.10:80/TCP"},`
	const does = `"does":[{"action":"forward","endpoint":"10.244.1.11:8080","masqueraded":false,"probability":1}],`
	a := askable(t, &plane{})
	code, body := ask(a, question)
	want := head + `"policy":"internalTrafficPolicy Cluster","choice":"ready endpoints","endpoints":[` +
		`{"address":"10.244.1.11:8080","in":true,"masquerade":"no","why":"ready","endpointSlice":"web-1","ready":true,"serving":true,"terminating":false,"local":true},` +
		`{"address":"10.244.2.11:8080","in":false,"why":"it is not ready","endpointSlice":"web-1","ready":false,"serving":false,"terminating":false,"local":false}]},` +
		does + `"agree":true}]}`
	if code != 200 || compact(t, body) != want {
		t.Errorf("%d\n%s\nwant\n%s", code, compact(t, body), want)
	}
	a.reasons = func(context.Context, dataplane.Verdict) (dataplane.Reasons, bool, error) {
		return dataplane.Reasons{}, false, nil
	}
	_, body = ask(a, question)
	want = head + `"endpoints":[{"address":"10.244.1.11:8080","in":true,"masquerade":"no","ready":false,"serving":false,"terminating":false,"local":true}]},` +
		does + `"notes":["the Service has changed since: why its endpoints were chosen is not known any more"],"agree":true}]}`
	if compact(t, body) != want {
		t.Errorf("without reasons\n%s\nwant\n%s", compact(t, body), want)
	}
}

func compact(t *testing.T, text string) string {
	t.Helper()
	var v json.RawMessage
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, v); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestExplainDisagreement(t *testing.T) {
	p := &plane{reject: true}
	h := askable(t, p)
	_, body := ask(h, "/explain?dst=10.96.0.10:80")
	for _, want := range []string{`"agree": false`, `"disagreement": "should forward`, `"object": "chain X"`, `"origin": "node"`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
	_, body = ask(h, "/audit")
	if want := `"text": "chain X is reject, want forward"`; !strings.Contains(body, want) {
		t.Errorf("no %s in %s", want, body)
	}
	p.fault = errors.New("the kernel is silent")
	for _, path := range []string{"/explain?dst=10.96.0.10:80", "/audit"} {
		if _, body := ask(h, path); !strings.Contains(body, `"error": "the kernel is silent"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// A mode that cannot keep a source is asked for what it can.
func TestExplainKnowsWhatTheModeLacks(t *testing.T) {
	const path = "/explain?proto=tcp&src=10.244.1.2:5000&iface=vethc&dst=10.96.0.10:80"
	_, body := ask(askable(t, &plane{}, dataplane.KeepSource), path)
	for _, want := range []string{`"masquerade": "yes"`, `is not masqueraded`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

func TestSnapshotAnswer(t *testing.T) {
	code, body := ask(askable(t, &plane{}), "/snapshot")
	for _, want := range []string{`"servicePorts": 1`, `"frontends": 1`, `"Name": "n1"`} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, no %s in %s", code, want, body)
		}
	}
	nothing := &localAPI{published: new(atomic.Pointer[dataplane.Snapshot])}
	for _, path := range []string{"/snapshot", "/explain?dst=10.96.0.10:80", "/services/shop/web"} {
		if code, body := ask(nothing, path); code != 503 {
			t.Errorf("%s without a snapshot: %d %s", path, code, body)
		}
	}
}

func TestServiceAndNodeAnswers(t *testing.T) {
	a := askable(t, &plane{})
	for path, want := range map[string]string{
		"/services/shop/web":   `[{"name":"http","protocol":"TCP","port":80,"addresses":["10.96.0.10"]}]`,
		"/services/shop/other": `null`,
		"/node":                `{"config":{"nodeName":"n1","masqueradeBit":14},"local":{"addresses":["192.168.77.10/24"]},"mode":"test"}`,
	} {
		if code, body := ask(a, path); code != 200 || compact(t, body) != want {
			t.Errorf("%s: %d %s, want %s", path, code, compact(t, body), want)
		}
	}
}

// To repair is to write, and so no GET.
func TestResyncAnswer(t *testing.T) {
	p := &plane{repairs: []dataplane.Difference{{Object: "chain X", Want: "forward"}}}
	a := askable(t, p)
	if code, body := ask(a, "/resync"); code != 405 {
		t.Errorf("GET: %d %s", code, body)
	}
	code, body := call(a, http.MethodPost, "/resync")
	if want := `{"planes":[{"plane":"test IPv4","differences":[{"object":"chain X","want":"forward","text":"chain X is missing: forward"}]}]}`; code != 200 || compact(t, body) != want {
		t.Errorf("%d %s, want %s", code, compact(t, body), want)
	}
	p.fault = errors.New("the kernel is silent")
	if _, body := call(a, http.MethodPost, "/resync"); !strings.Contains(body, `"error": "the kernel is silent"`) {
		t.Errorf("with a fault: %s", body)
	}
}

// TestSocket: root alone may ask, and the socket of a process before us is no
// obstacle.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "portway.sock")
	for range 2 {
		l, err := listenLocal(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false) // as if it had been killed
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if m := info.Mode().Perm(); m != 0o600 {
			t.Errorf("the socket's mode is %o", m)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServerTriesAgain: a port that is taken is no end, but for those who want
// it to be one.
func TestServerTriesAgain(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var told error
	s := &server{
		what: "/x", addr: l.Addr().String(), hardFail: true, failed: func(err error) { told = err },
		serve: func(context.Context, net.Listener) error { return io.EOF }, log: discard(),
	}
	err = s.run(t.Context())
	if want := "serve /x on " + s.addr + ": another process has this port; is a kube-proxy still running?"; err == nil || err.Error() != want || told == nil {
		t.Errorf("error %v, want %s; told %v", err, want, told)
	}
	s.addr = ""
	if err := s.run(t.Context()); err != nil {
		t.Errorf("a server that is not wanted: %v", err)
	}
}
