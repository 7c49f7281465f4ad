package healthcheck_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/healthcheck"
)

const syncPeriod = 30 * time.Second

// clock is the oldest change that is not applied, in one family or in all.
type clock struct {
	since time.Time
	only  dataplane.Family // 0: in all
}

func (c *clock) unapplied(f dataplane.Family) (time.Time, bool) {
	return c.since, !c.since.IsZero() && (c.only == 0 || c.only == f)
}

func ask(t *testing.T, h http.Handler, path string) (int, map[string]any) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	var body map[string]any
	if rec.Code != http.StatusNotFound {
		if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s answers %q: %v", path, rec.Body, err)
		}
	}
	return rec.Code, body
}

// TestHealthMatrix walks through all that /livez and /healthz depend on
// (KEP-3836).
// Proves S8.4, S8.5.
func TestHealthMatrix(t *testing.T) {
	const limit = 2 * syncPeriod
	for _, c := range []struct {
		name           string
		node           healthcheck.NodeState
		synced4        bool
		synced6        bool
		unapplied      time.Duration // 0: nothing
		livez, healthz int
	}{
		{"at the start", healthcheck.NodeUnknown, false, false, 0, 200, 503},
		{"waiting for the first sync", healthcheck.NodeEligible, false, false, time.Second, 200, 503},
		{"the first sync does not succeed", healthcheck.NodeEligible, false, false, limit + 1, 503, 503},
		{"one family of two is ready", healthcheck.NodeEligible, true, false, 0, 200, 503},
		{"the other family of two is ready", healthcheck.NodeEligible, false, true, 0, 200, 503},
		{"ready", healthcheck.NodeEligible, true, true, 0, 200, 200},
		{"ready, a change is on its way", healthcheck.NodeEligible, true, true, limit, 200, 200},
		{"ready, a change is stuck", healthcheck.NodeEligible, true, true, limit + 1, 503, 503},
		{"the node is unknown", healthcheck.NodeUnknown, true, true, 0, 200, 503},
		{"the node is being deleted", healthcheck.NodeDeleting, true, true, 0, 200, 503},
		{"the node is tainted by the autoscaler", healthcheck.NodeToBeDeleted, true, true, 0, 200, 503},
		{"everything is bad", healthcheck.NodeDeleting, true, true, limit + 1, 503, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pending clock
				p := healthcheck.NewProxy(healthcheck.Config{
					SyncPeriod: syncPeriod, Families: dataplane.Families(), Unapplied: pending.unapplied,
				})
				p.SetNode(c.node)
				if c.synced4 {
					p.Synced(dataplane.IPv4)
				}
				if c.synced6 {
					p.Synced(dataplane.IPv6)
				}
				if c.unapplied > 0 {
					pending.since = time.Now()
					time.Sleep(c.unapplied) //nolint:forbidigo // virtual time passes
				}
				livez, _ := ask(t, p, "/livez")
				healthz, body := ask(t, p, "/healthz")
				if livez != c.livez || healthz != c.healthz {
					t.Errorf("/livez %d, want %d; /healthz %d, want %d", livez, c.livez, healthz, c.healthz)
				}
				if p.Live() != (c.livez == 200) || p.Healthy() != (c.healthz == 200) {
					t.Errorf("Live %v, Healthy %v", p.Live(), p.Healthy())
				}
				if got, want := body["nodeEligible"], c.node == healthcheck.NodeEligible; got != want {
					t.Errorf("nodeEligible %v, want %v", got, want)
				}
			})
		})
	}
}

func TestHealthBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pending clock
		p := healthcheck.NewProxy(healthcheck.Config{
			SyncPeriod: syncPeriod, Families: []dataplane.Family{dataplane.IPv4}, Unapplied: pending.unapplied,
		})
		stamp := func() any { return time.Now().Format(time.RFC3339Nano) }
		expect := func(path string, want map[string]any) {
			t.Helper()
			_, body := ask(t, p, path)
			if len(body) != len(want) {
				t.Errorf("%s says %v, want %v", path, body, want)
			}
			for k, v := range want {
				if !reflect.DeepEqual(body[k], v) {
					t.Errorf("%s: %s is %v, want %v", path, k, body[k], v)
				}
			}
		}
		families := func(lastUpdated any, healthy bool) map[string]any {
			return map[string]any{"IPv4": map[string]any{"lastUpdated": lastUpdated, "healthy": healthy}}
		}
		never := "0001-01-01T00:00:00Z"
		expect("/livez", map[string]any{"lastUpdated": never, "currentTime": stamp(), "healthy": true})

		p.SetNode(healthcheck.NodeEligible)
		p.Synced(dataplane.IPv4)
		synced := stamp()
		time.Sleep(time.Hour) //nolint:forbidigo // virtual time passes
		expect("/healthz", map[string]any{"lastUpdated": stamp(), "currentTime": stamp(), "healthy": true, "nodeEligible": true, "status": families(synced, true)})

		p.SetNode(healthcheck.NodeToBeDeleted)
		expect("/healthz", map[string]any{"lastUpdated": synced, "currentTime": stamp(), "healthy": false, "nodeEligible": false, "status": families(synced, true)})
		expect("/livez", map[string]any{"lastUpdated": stamp(), "currentTime": stamp(), "healthy": true, "status": families(synced, true)})

		p.SetNode(healthcheck.NodeEligible)
		pending.since = time.Now()
		time.Sleep(time.Hour) //nolint:forbidigo // virtual time passes
		expect("/healthz", map[string]any{"lastUpdated": synced, "currentTime": stamp(), "healthy": false, "nodeEligible": true, "status": families(synced, false)})
		expect("/livez", map[string]any{"lastUpdated": synced, "currentTime": stamp(), "healthy": false, "status": families(synced, false)})
	})
}

// TestHealthOfFamilies: what one family waits for says nothing of the other one,
// and is enough for the whole to be unwell.
func TestHealthOfFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pending := clock{only: dataplane.IPv6}
		p := healthcheck.NewProxy(healthcheck.Config{
			SyncPeriod: syncPeriod, Families: dataplane.Families(), Unapplied: pending.unapplied,
		})
		p.SetNode(healthcheck.NodeEligible)
		p.Synced(dataplane.IPv4)
		p.Synced(dataplane.IPv6)
		pending.since = time.Now()
		time.Sleep(2*syncPeriod + 1) //nolint:forbidigo // virtual time passes
		code, body := ask(t, p, "/healthz")
		families, _ := body["status"].(map[string]any)
		four, _ := families["IPv4"].(map[string]any)
		six, _ := families["IPv6"].(map[string]any)
		if code != http.StatusServiceUnavailable || four["healthy"] != true || six["healthy"] != false {
			t.Errorf("/healthz answers %d, IPv4 %v, IPv6 %v", code, four, six)
		}
		p.SetFamilies([]dataplane.Family{dataplane.IPv4})
		code, body = ask(t, p, "/healthz")
		if families, _ := body["status"].(map[string]any); code != http.StatusOK || len(families) != 1 {
			t.Errorf("without IPv6 /healthz answers %d %v", code, body)
		}
	})
}

// TestHealthPortServesNothingElse: what else a proxy has to tell is not for
// those who may ask about health.
func TestHealthPortServesNothingElse(t *testing.T) {
	p := healthcheck.NewProxy(healthcheck.Config{SyncPeriod: syncPeriod, Unapplied: new(clock).unapplied})
	for _, path := range []string{"/", "/metrics", "/configz", "/debug/pprof/", "/healthz/x", "/proxyMode"} {
		if code, _ := ask(t, p, path); code != http.StatusNotFound {
			t.Errorf("%s answers %d", path, code)
		}
	}
}

func TestAnswersAreCounted(t *testing.T) {
	got := make(map[string]map[int]int)
	p := healthcheck.NewProxy(healthcheck.Config{
		SyncPeriod: syncPeriod, Unapplied: new(clock).unapplied,
		Answered: func(path string, code int) {
			if got[path] == nil {
				got[path] = make(map[int]int)
			}
			got[path][code]++
		},
	})
	for range 3 {
		ask(t, p, "/healthz")
	}
	p.SetNode(healthcheck.NodeEligible)
	ask(t, p, "/healthz")
	ask(t, p, "/livez")
	ask(t, p, "/other")
	if got["/healthz"][503] != 3 || got["/healthz"][200] != 1 || got["/livez"][200] != 1 || len(got) != 2 {
		t.Errorf("counted %v", got)
	}
}

func TestServeEndsWithTheContext(t *testing.T) {
	p := healthcheck.NewProxy(healthcheck.Config{SyncPeriod: syncPeriod, Unapplied: new(clock).unapplied})
	l := listen(t, "127.0.0.1:0")
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- p.Serve(ctx, l) }()
	if code := get(t, "http://"+l.Addr().String()+"/livez").code; code != http.StatusOK {
		t.Errorf("/livez answers %d", code)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err == nil {
		t.Error("still listening")
	}
	if err := p.Serve(t.Context(), l); err == nil {
		t.Error("serving on a closed listener is no error")
	}
}
