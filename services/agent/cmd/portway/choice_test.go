package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// annotated is the Node that asks for a mode by its annotation.
func annotated(mode string) *corev1.Node {
	n := thisNode()
	n.Annotations = map[string]string{"net.experimental.kubernetes.io/proxy-mode": mode}
	return n
}

// noIPVS is what makes the ipvs mode impossible on every kernel: a scheduler that
// nobody has.
const noIPVS = "--ipvs-scheduler=none-such"

// withoutStatistic is the program before the agent that makes the iptables mode,
// which needs that match, impossible, and the userspace mode not.
func withoutStatistic(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables-restore", "ip6tables-restore"} {
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\nrules=$(cat)\ncase \"$rules\" in *statistic*) echo \"no match statistic\" >&2; exit 2 ;; esac\n"+
			"printf '%%s\\n' \"$rules\" | %s \"$@\"\n", real)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	return []string{"env", "PATH=" + dir + ":" + os.Getenv("PATH")}
}

// TestFallback: somebody asks for a mode that cannot be, and every place that
// should say so does. The next one that can be serves.
func TestFallback(t *testing.T) {
	for _, c := range []struct {
		name, annotation string
		flags            []string
		wrapper          func(*testing.T) []string
		wanted, using    string
	}{
		{name: "annotated", annotation: "nftables", wanted: "nftables", using: "iptables"},
		{name: "configured", annotation: "userspace", flags: []string{"--proxy-mode=ipvs", noIPVS}, wanted: "ipvs", using: "iptables"},
		{name: "twice", annotation: "ipvs", flags: []string{noIPVS}, wrapper: withoutStatistic, wanted: "ipvs", using: "userspace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			s.set(annotated(c.annotation))
			var wrapper []string
			if c.wrapper != nil {
				wrapper = c.wrapper(t)
			}
			p := s.startBy(wrapper, append(c.flags, "--detect-local-mode=NodeCIDR")...)
			s.eventuallyAnswers(healthz, 200)
			s.tellsMode(c.using, c.wanted)
			if v := s.metric(fmt.Sprintf("portway_mode_fallback{mode=%q,wanted=%q}", c.using, c.wanted)); v != "1" {
				t.Errorf("portway_mode_fallback is %s", v)
			}
			if log := p.log.String(); !strings.Contains(log, "cannot run the proxy mode that was asked for") {
				t.Error("the log says nothing")
			}
			s.eventuallyTold("ProxyModeFallback", "Node")
		})
	}
}

// TestAnnotation: where nothing is configured the Node's annotation names the
// mode, and nobody is alarmed.
func TestAnnotation(t *testing.T) {
	s := newSite(t)
	s.set(annotated("userspace"))
	p := s.start("--detect-local-mode=NodeCIDR")
	s.eventuallyAnswers(healthz, 200)
	s.tellsMode("userspace", "")
	if v := s.metric("portway_mode_fallback"); v != "absent" {
		t.Errorf("portway_mode_fallback is %s", v)
	}
	if v := s.metric("rest_client_requests_total"); v == "0" || v == "absent" {
		t.Errorf("rest_client_requests_total is %s", v)
	}
	if strings.Contains(p.log.String(), "cannot run the proxy mode") {
		t.Error("the log tells of a fall-back")
	}
}

// tellsMode wants /proxyMode to name the mode in use, and the one that was asked
// for if that is another one.
func (s *site) tellsMode(using, wanted string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, status+"/proxyMode", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if have := resp.Header.Get("X-Portway-Wanted-Mode"); have != wanted {
		s.t.Errorf("/proxyMode says that %q was asked for, want %q", have, wanted)
	}
	if _, body := s.get(status + "/proxyMode"); body != using {
		s.t.Errorf("/proxyMode says %s, want %s", body, using)
	}
}

// TestFallbackForbidden: with --mode-fallback=error a mode that cannot be is the
// end, also when only the Node asks for it.
func TestFallbackForbidden(t *testing.T) {
	s := newSite(t)
	s.set(annotated("ipvs"))
	p := s.start("--mode-fallback=error", noIPVS, "--detect-local-mode=NodeCIDR")
	<-p.done
	code, log := p.ProcessState.ExitCode(), p.log.String()
	if code != 1 || !strings.Contains(log, "portway: the mode ipvs cannot run here, and --mode-fallback=error forbids another: ") {
		t.Errorf("exit code %d, said\n%s", code, log)
	}
	if rules := s.rules(); strings.Contains(rules, "KUBE") {
		t.Errorf("it has written rules:\n%s", rules)
	}
}
