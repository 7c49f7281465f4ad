package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/servicecache/apisim"
)

// site is a node with an API server on its loopback, and the program on it.
type site struct {
	t    *testing.T
	rig  *rig.Rig
	api  *apisim.Server
	http *http.Client
}

func newSite(t *testing.T) *site { return newSiteOf(t, rig.Options{}) }

func newSiteOf(t *testing.T, opts rig.Options) *site {
	s := &site{t: t, rig: rig.New(t, opts)}
	if err := s.rig.Node.Do(func() error { s.api = apisim.New(); return nil }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.api.Close)
	s.http = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (conn net.Conn, err error) {
			network := "tcp"
			if addr == "socket:80" {
				network, addr = "unix", socket
			}
			err = s.rig.Node.Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	return s
}

// socket is in the /run of the rig.
const socket = "/run/portway/portway.sock"

func (s *site) set(objects ...runtime.Object) {
	s.t.Helper()
	if err := s.api.Set(objects...); err != nil {
		s.t.Fatal(err)
	}
}

// get returns the status code and body of an answer; 0 if there is none.
func (s *site) get(url string) (int, string) {
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// eventually waits for a condition, which describes what it found.
func (s *site) eventually(what string, condition func() (ok bool, found string)) {
	s.t.Helper()
	limit := time.After(2 * time.Minute)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, found := condition()
		if ok {
			return
		}
		select {
		case <-limit:
			s.t.Fatalf("%s: still %s", what, found)
		case <-tick.C:
		}
	}
}

func (s *site) eventuallyAnswers(url string, code int) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%s answers %d", url, code), func() (bool, string) {
		have, body := s.get(url)
		return have == code, fmt.Sprint(have, " ", body)
	})
}

// process is the program at work.
type process struct {
	*exec.Cmd
	log  *lockedBuffer
	done chan struct{}
}

// start runs the program on the node.
func (s *site) start(args ...string) *process {
	s.t.Helper()
	return s.startBy(nil, args...)
}

// startBy is start by another program, which is replaced by it.
func (s *site) startBy(wrapper []string, args ...string) *process {
	s.t.Helper()
	args = append([]string{"--master=" + s.api.URL(), "--hostname-override=node", "--agent-socket=" + socket, "-v=4"}, args...)
	argv := append(append(wrapper, "portway"), args...)
	p := &process{Cmd: exec.CommandContext(s.t.Context(), argv[0], argv[1:]...), log: new(lockedBuffer), done: make(chan struct{})}
	p.Stderr = p.log
	if err := s.rig.Node.Do(p.Start); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.Wait() // ProcessState says how it ended
		close(p.done)
	}()
	s.t.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if s.t.Failed() {
			s.t.Logf("what the program said:\n%s", p.log.String())
		}
	})
	return p
}

// end sends a signal and returns the exit code, -1 if the signal was the end.
func (p *process) end(sig os.Signal) int {
	_ = p.Process.Signal(sig) // it may have ended by itself
	<-p.done
	return p.ProcessState.ExitCode()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func thisNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "u-node"},
		Spec:       corev1.NodeSpec{PodCIDR: rig.PodRange4.String(), PodCIDRs: []string{rig.PodRange4.String(), rig.PodRange6.String()}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.168.77.10"},
			{Type: corev1.NodeInternalIP, Address: "fd00:77::10"},
		}},
	}
}

var vip = netip.MustParseAddrPort("10.96.0.10:80")

func web() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u-web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: vip.Addr().String(), ClusterIPs: []string{vip.Addr().String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Port: int32(vip.Port()), Protocol: corev1.ProtocolTCP}},
		},
	}
}

// endpoints are a slice of web's with one pod.
func endpoints(pods ...*rig.Host) *discoveryv1.EndpointSlice {
	name, port, tcp, node := "http", int32(8080), corev1.ProtocolTCP, "node"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
	}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.Addr4.String()}, NodeName: &node})
	}
	return s
}

func (s *site) ask() rig.Result {
	return rig.Probe{From: s.rig.Client, Proto: rig.TCP, To: vip}.Send(s.t.Context())
}

func (s *site) eventuallyReaches(pod *rig.Host) {
	s.t.Helper()
	s.eventually("the Service answers as "+pod.Name, func() (bool, string) {
		r := s.ask()
		return r.Outcome == rig.Answered && r.Server == pod.Name, r.String()
	})
}

const (
	livez   = "http://127.0.0.1:10256/livez"
	healthz = "http://127.0.0.1:10256/healthz"
	status  = "http://127.0.0.1:10249"
	local   = "http://socket"
)

// rules are the node's rules without what changes by itself.
func (s *site) rules() string {
	s.t.Helper()
	var all strings.Builder
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		out, err := s.rig.Node.Run(s.t.Context(), program)
		if err != nil {
			s.t.Fatal(err)
		}
		all.WriteString(out)
	}
	return regexp.MustCompile(`(?m)^#.*$|\[\d+:\d+\]`).ReplaceAllString(all.String(), "")
}

// eventuallyTold waits for an Event.
func (s *site) eventuallyTold(reason, kind string) {
	s.t.Helper()
	s.eventually("an Event "+reason, func() (bool, string) {
		for _, raw := range s.api.List("events") {
			var e eventsv1.Event
			if err := json.Unmarshal(raw, &e); err != nil {
				return false, err.Error()
			}
			if e.Reason == reason && e.Regarding.Kind == kind {
				return true, ""
			}
		}
		return false, fmt.Sprint(len(s.api.List("events")), " other Events")
	})
}

func (s *site) metric(name string) string {
	_, body := s.get(status + "/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{") {
			return strings.TrimSpace(line[strings.LastIndex(line, " "):])
		}
	}
	return "absent"
}
