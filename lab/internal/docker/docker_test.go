package docker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/lab/internal/command"
)

// fakeDocker is the docker program with memory for networks.
type fakeDocker struct {
	networks map[string]string // name -> bridge option
	envs     []string
}

func (f *fakeDocker) Run(_ context.Context, c command.Cmd) (string, error) {
	f.envs = append(f.envs, strings.Join(c.Env, " "))
	name := c.Args[len(c.Args)-1]
	switch strings.Join(c.Args[1:3], " ") {
	case "network ls":
		for name := range f.networks {
			if slices.Contains(c.Args, "name=^"+name+"$") {
				return "0123456789abcdef\n", nil
			}
		}
		return "\n", nil
	case "network create":
		for _, a := range c.Args {
			if bridge, ok := strings.CutPrefix(a, "com.docker.network.bridge.name="); ok {
				f.networks[name] = bridge
			}
		}
		return "id\n", nil
	case "network inspect":
		return f.networks[name] + "\n", nil
	case "network rm":
		if _, ok := f.networks[name]; !ok {
			return "", &command.Error{Cmd: c, Stderr: "Error: No such network: " + name, Err: errors.New("exit status 1")}
		}
		delete(f.networks, name)
		return name, nil
	}
	return "", errors.New("unexpected " + c.String())
}

func TestNetwork(t *testing.T) {
	f := &fakeDocker{networks: map[string]string{}}
	c := Client{Run: f, Host: "unix:///x.sock"}
	for range 2 { // made once, then found
		if got, err := c.EnsureNetwork(t.Context(), "kind", "br-ours", "fd00::/64"); err != nil || got != "br-ours" {
			t.Errorf("bridge is %q, %v", got, err)
		}
	}
	f.networks["kind"] = "" // made by someone else: Docker named the bridge
	if got, err := c.EnsureNetwork(t.Context(), "kind", "br-ours", "fd00::/64"); err != nil || got != "br-0123456789ab" {
		t.Errorf("bridge is %q, %v", got, err)
	}
	for range 2 { // removed, then not there
		if err := c.RemoveNetwork(t.Context(), "kind"); err != nil {
			t.Error(err)
		}
	}
	for _, env := range f.envs {
		if env != "DOCKER_HOST=unix:///x.sock" {
			t.Errorf("docker ran with environment %q", env)
		}
	}
}

func TestClientOfTheUser(t *testing.T) {
	if got := (Client{}).Cmd("ps").String(); got != "docker ps" {
		t.Errorf("command is %s", got)
	}
}

func TestDaemonConfig(t *testing.T) {
	d := Daemon{RunDir: "/run/x", DataDir: "/cache/docker"}
	parse := func(d Daemon) map[string]any {
		t.Helper()
		raw, err := d.config()
		if err != nil {
			t.Fatal(err)
		}
		var c map[string]any
		if err := json.Unmarshal(raw, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := parse(d)
	for key, want := range map[string]any{"bridge": "none", "data-root": "/cache/docker", "exec-root": "/run/x/exec", "pidfile": "/run/x/docker.pid"} {
		if c[key] != want {
			t.Errorf("%s is %v, want %v", key, c[key], want)
		}
	}
	if c["default-runtime"] != nil {
		t.Errorf("default runtime is %v without need", c["default-runtime"])
	}
	d.Runtime = "/cache/labrunc"
	if c := parse(d); c["default-runtime"] != "labrunc" {
		t.Errorf("default runtime is %v", c["default-runtime"])
	}
}

func TestPidIsOnlyOurs(t *testing.T) {
	d := Daemon{RunDir: t.TempDir()}
	if d.Running() {
		t.Error("runs without a pid file")
	}
	// A process that is not a dockerd with our configuration: this test.
	if err := os.WriteFile(d.pidFile(), []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d.Running() {
		t.Error("process 1 passes for our dockerd")
	}
	if err := os.WriteFile(d.pidFile(), []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d.Running() {
		t.Error("a broken pid file passes for our dockerd")
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Errorf("stopping what does not run: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(d.pidFile())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is still there: %v", err)
	}
}
