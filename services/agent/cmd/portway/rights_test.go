package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// TestRights runs every mode as deploy/base does: what needs more is done by
// --init-only, and the rest with NET_ADMIN, NET_RAW and no way to get more.
func TestRights(t *testing.T) {
	for _, m := range usableModes(t) {
		t.Run(m.Name, func(t *testing.T) {
			s := newSwitchSite(t)
			mode := "--proxy-mode=" + m.Name
			if out, err := s.rig.Node.Run(t.Context(), "portway", mode, "--init-only"); err != nil {
				t.Fatalf("prepare: %v %s", err, out)
			}
			p := s.startBy([]string{"setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--no-new-privs"},
				mode, "--mode-fallback=error", "--detect-local-mode=NodeCIDR")
			s.eventuallyAnswers(healthz, 200)
			if have := effective(t, p.Process.Pid); have != "0000000000003000" {
				t.Errorf("the program has the capabilities %s, want NET_ADMIN and NET_RAW", have)
			}
			for _, w := range s.ways() {
				if r := w.Send(t.Context()); r.Outcome != rig.Answered {
					t.Errorf("%s: %s", w, r)
				}
			}
			if code, body := s.get(local + "/audit"); code != 200 || strings.Contains(body, `"error"`) {
				t.Errorf("/audit: %d %s", code, body)
			}
			if code := p.end(syscall.SIGTERM); code != 0 {
				t.Errorf("stopped with exit code %d", code)
			}
		})
	}
}

// effective are the capabilities of a process.
func effective(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("process %d tells no capabilities", pid)
	return ""
}
