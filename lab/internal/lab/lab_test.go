package lab

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/step"
)

func names(steps []step.Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Name)
	}
	return out
}

func TestStepsOfUp(t *testing.T) {
	portway := cluster.Options{Proxy: cluster.Portway}
	for _, tc := range []struct {
		name  string
		state State
		reuse bool
		want  []string
	}{
		{
			"registry",
			State{Options: portway},
			false,
			[]string{"Find kubectl", "Create the kind cluster", "Build the agent's image", "Deploy the agent"},
		},
		{
			"own Docker",
			State{Options: portway, Offline: true, OwnDaemon: true},
			false,
			[]string{
				"Install missing Debian packages", "Start the lab's own Docker", "Make Kubernetes", "Find kind's node files",
				"Make the node image", "Keep the lab's traffic", "Create the kind cluster", "Connect the pod networks",
				"Build the agent's image", "Deploy the agent",
			},
		},
		{
			"a Docker that was there, no registry",
			State{Options: portway, Offline: true},
			false,
			[]string{
				"Install missing Debian packages", "Make Kubernetes", "Find kind's node files", "Make the node image",
				"Keep the lab's traffic", "Create the kind cluster", "Connect the pod networks", "Build the agent's image", "Deploy the agent",
			},
		},
		{
			"with a node that has a kernel of its own",
			State{Options: portway, Offline: true, Guest: true},
			true,
			[]string{
				"Install missing Debian packages", "Keep the lab's traffic", "Connect the pod networks",
				"Add a node whose kernel has IPVS", "Connect its pod network", "Build the agent's image", "Deploy the agent",
			},
		},
		{"again", State{Options: portway}, true, []string{"Find kubectl", "Build the agent's image", "Deploy the agent"}},
		{
			"again, on our own Docker",
			State{Options: portway, Offline: true, OwnDaemon: true},
			true,
			[]string{
				"Install missing Debian packages", "Start the lab's own Docker", "Keep the lab's traffic", "Connect the pod networks",
				"Build the agent's image", "Deploy the agent",
			},
		},
		{"kube-proxy", State{Options: cluster.Options{Proxy: cluster.KubeProxy}}, false, []string{"Find kubectl", "Create the kind cluster"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := &up{Lab: &Lab{state: tc.state}, reuse: tc.reuse}
			want := append(tc.want, "Wait for the nodes", "Deploy the sample", "Ask the sample")
			got := names(u.steps())
			same := slices.EqualFunc(got, want, func(g, w string) bool { return strings.HasPrefix(g, w) })
			if !same {
				t.Errorf("steps are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestStepsOfDown(t *testing.T) {
	own := &Lab{runs: t.TempDir(), state: State{Offline: true, OwnDaemon: true, Bridge: networkBridge}}
	got := names(own.downSteps())
	// Nothing runs in the daemon (it is not started), so there is no cluster to
	// delete; rules go after Docker, which would miss them.
	if want := []string{"Stop the lab's own Docker", "Remove the lab's firewall rules", "Put this machine's network settings back"}; !slices.Equal(got, want) {
		t.Errorf("steps are %q", got)
	}
	if got := names((&Lab{}).downSteps()); !slices.Equal(got, []string{"Delete the kind cluster"}) {
		t.Errorf("with a registry, steps are %q", got)
	}
}

func TestStateIsKept(t *testing.T) {
	l := &Lab{dir: filepath.Join(t.TempDir(), "portway", "lab"), Out: io.Discard}
	if _, err := l.load(); !errors.Is(err, errDown) {
		t.Errorf("without a lab: %v", err)
	}
	l.state = State{Options: cluster.Options{Proxy: cluster.Portway, Mode: "ipvs"}, Offline: true, Bridge: "br0"}
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	got, err := l.load()
	if err != nil || got.Options != l.state.Options || got.Bridge != "br0" {
		t.Errorf("loaded %+v, %v", got, err)
	}
	if err := os.WriteFile(l.stateFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.load(); err == nil || !strings.Contains(err.Error(), l.stateFile()) {
		t.Errorf("broken state: %v", err)
	}
	if err := l.removeState(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(l.dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state's directory is still there: %v", err)
	}
}

func TestOnlyOneCommandAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "portway", "lab")
	one, two := &Lab{dir: dir, Out: io.Discard}, &Lab{dir: dir, Out: io.Discard}
	unlock, err := one.lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := two.Down(t.Context()); err == nil || !strings.Contains(err.Error(), "another lab command") {
		t.Errorf("second command: %v", err)
	}
	unlock()
	if err := two.Down(t.Context()); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a lab, its directory is still there: %v", err)
	}
}

func TestDemoCommands(t *testing.T) {
	d := demo{
		kubeconfig: "/s/kubeconfig", dockerHost: "unix:///run/x.sock", kubectl: "/c/kubectl",
		node: "portway-worker", exec: "docker exec portway-worker", address: netip.MustParseAddr("10.96.1.2"),
	}
	if got := d.environment(); !slices.Equal(got, []string{"export KUBECONFIG=/s/kubeconfig", "export DOCKER_HOST=unix:///run/x.sock"}) {
		t.Errorf("environment is %q", got)
	}
	if got := d.fromNode(); !strings.HasPrefix(got, "docker exec portway-worker sh -c ") || !strings.Contains(got, "http://10.96.1.2:80/") {
		t.Errorf("from a node: %s", got)
	}
	if got := d.fromPod(); !strings.Contains(got, "http://myapp/") || !strings.Contains(got, `{"nodeName":"portway-worker"}`) || !strings.HasPrefix(got, "/c/kubectl run ") {
		t.Errorf("from a pod: %s", got)
	}
	d.address, d.dockerHost = netip.MustParseAddr("fd00:10:96::5"), ""
	if got := d.url(); got != "http://[fd00:10:96::5]:80/" {
		t.Errorf("IPv6 URL is %s", got)
	}
	if got := d.environment(); len(got) != 1 {
		t.Errorf("environment on the user's own Docker is %q", got)
	}
}

func TestAnswers(t *testing.T) {
	page := "<title>Welcome to nginx!</title>\n"
	for out, want := range map[string]bool{
		"     30 " + page:            true,
		"     29 " + page:            false,
		"     30 <title>x</title>\n": false,
		"":                           false,
		"      1 <title>x</title>\n     30 " + page: false,
	} {
		if got := answeredAll(out); got != want {
			t.Errorf("answeredAll(%q) = %v", out, got)
		}
	}
	line := "     10 [pod/svc-deploy-1/nginx]\n"
	if threePods(line+line) || !threePods(line+line+line) {
		t.Error("threePods does not count three")
	}
}

// counting answers with the n-th of its outputs, and stays with the last.
type counting struct {
	outputs []string
	calls   int
}

func (c *counting) Run(context.Context, command.Cmd) (string, error) {
	c.calls++
	return c.outputs[min(c.calls, len(c.outputs))-1], nil
}

func TestUntilAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &counting{outputs: []string{"no", "no", "yes"}}
		l := &Lab{run: r}
		enough := func(out string) bool { return out == "yes" }
		if err := l.until(t.Context(), demo{}, "ask", enough); err != nil || r.calls != 3 {
			t.Errorf("%d calls, %v", r.calls, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := (&Lab{run: &counting{outputs: []string{"no"}}}).until(ctx, demo{}, "ask", enough)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `unexpected output "no" of: KUBECONFIG=`) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestResumeAfterARestartTakesTheNewOptions(t *testing.T) {
	before := State{Options: cluster.Options{Family: "dual"}, Offline: true, OwnDaemon: true, Bridge: networkBridge}
	u := &up{Lab: &Lab{runs: t.TempDir()}} // no daemon runs
	want := cluster.Options{Family: "ipv6"}
	if err := u.resume(before, want, false); err != nil {
		t.Fatal(err)
	}
	if u.state.Options != want || u.reuse || !u.state.OwnDaemon {
		t.Errorf("state is %+v, reuse %v", u.state, u.reuse)
	}
}
