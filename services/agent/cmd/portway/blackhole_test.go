package main

import (
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.168.77.1:6443", insecure-skip-tls-verify: true}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`

// serveTLS puts an HTTP/2 server in front of the API server, outside the node.
func (s *site) serveTLS() {
	s.t.Helper()
	to, err := url.Parse(s.api.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval = s.http.Transport, -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	srv := httptest.NewUnstartedServer(proxy)
	_ = srv.Listener.Close() // it is not where it should be
	srv.EnableHTTP2 = true
	if srv.Listener, err = s.rig.Up.Listen(s.t.Context(), "192.168.77.1:6443"); err != nil {
		s.t.Fatal(err)
	}
	srv.StartTLS()
	s.t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
}

// TestSilentConnection: kubernetes#28674, a connection to the API server that
// goes silent without an end is noticed, and what happened meanwhile is found.
// By default it takes client-go 30 and 15 seconds; here 2 and 1.
func TestSilentConnection(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "2")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	s := newSite(t)
	s.serveTLS()
	e1, e2 := s.rig.Endpoints[0], s.rig.Endpoints[1]
	e1.Serve(t, rig.TCP, 8080)
	e2.Serve(t, rig.TCP, 8080)
	s.set(thisNode(), web(), endpoints(e1))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	p := s.start("--master=", "--kubeconfig="+file, "--iptables-min-sync-period=10ms")
	s.eventuallyReaches(e1)

	silence := func(verb string) {
		t.Helper()
		if _, err := s.rig.Up.Run(t.Context(), "iptables", verb, "OUTPUT", "-p", "tcp", "--sport", "6443", "-j", "DROP"); err != nil {
			t.Fatal(err)
		}
	}
	silence("-A")
	s.set(endpoints(e2))
	s.eventually("the silence is noticed", func() (bool, string) {
		return strings.Contains(p.log.String(), "client connection lost"), "unnoticed"
	})
	if r := s.ask(); r.Server != e1.Name {
		t.Errorf("without the API server: %s", r)
	}
	silence("-D")
	s.eventuallyReaches(e2)
}
