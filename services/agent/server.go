package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/portway/portway/services/agent/metrics"
)

// listenRetry is how long a server waits before it tries its port again.
const listenRetry = 5 * time.Second

// A server answers on one port for as long as its context lives.
type server struct {
	what     string // what it serves, for people
	addr     string // empty: it is not wanted
	hardFail bool
	serve    func(context.Context, net.Listener) error
	failed   func(error) // told when it cannot listen, each time anew
	log      *slog.Logger
}

// run listens and serves. A port that is taken, or a server that breaks, is
// tried again, unless the configuration wants that to be the end.
func (s *server) run(ctx context.Context) error {
	if s.addr == "" {
		return nil
	}
	for {
		err := s.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.failed(err)
		if s.hardFail {
			return err
		}
		s.log.Error("A server does not run; trying again", "server", s.what, "err", err, "in", listenRetry)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenRetry):
		}
	}
}

func (s *server) once(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("serve %s on %s: another process has this port; is a kube-proxy still running?", s.what, s.addr)
	}
	if err != nil {
		return fmt.Errorf("serve %s on %s: %w", s.what, s.addr, err)
	}
	return s.serve(ctx, l)
}

// serveHTTP serves a handler until the context ends, which is no error.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	return nil
}

// statusHandler is what kube-proxy serves beside its metrics. The mode is
// nil before it is chosen.
func statusHandler(all http.Handler, mode *atomic.Pointer[choice], cfg *v1alpha1.KubeProxyConfiguration) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", all)
	metrics.InstallSLIs(mux)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		metrics.ObserveHealth(r.Context(), "ping", r.URL.Path, true)
		writeText(w, "ok")
	})
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		c := mode.Load()
		if c == nil {
			http.Error(w, "the proxy mode is not chosen yet", http.StatusServiceUnavailable)
			return
		}
		if c.fellBack() {
			w.Header().Set("X-Portway-Wanted-Mode", c.wanted)
		}
		writeText(w, c.mode.Name)
	})
	mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{v1alpha1.GroupName: cfg})
	})
	if cfg.EnableProfiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func writeText(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(w, s) // the asker has left: nobody to tell
}

func writeJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // it is no HTML
	_ = e.Encode(body)     // the asker has left: nobody to tell
}
