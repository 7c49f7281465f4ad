package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/portway/portway/lab/internal/command"
)

// Daemon is the lab's own dockerd, apart from any other on the machine.
type Daemon struct {
	Run     command.Runner
	RunDir  string // socket, pid and exec root; short, as a socket's path has a limit of 108 bytes
	DataDir string // images and containers
	Runtime string // the OCI runtime; empty: dockerd's own choice
}

// Host is the daemon's DOCKER_HOST.
func (d Daemon) Host() string { return "unix://" + filepath.Join(d.RunDir, "docker.sock") }

func (d Daemon) configFile() string { return filepath.Join(d.RunDir, "daemon.json") }
func (d Daemon) pidFile() string    { return filepath.Join(d.RunDir, "docker.pid") }
func (d Daemon) logFile() string    { return filepath.Join(d.RunDir, "dockerd.log") }

// config is dockerd's configuration file.
func (d Daemon) config() ([]byte, error) {
	c := map[string]any{
		"hosts":     []string{d.Host()},
		"data-root": d.DataDir,
		"exec-root": filepath.Join(d.RunDir, "exec"),
		"pidfile":   d.pidFile(),
		"group":     "root",
		// The lab uses one network of its own: no docker0, and no rules for it.
		"bridge": "none",
		// Docker's resolver asks the machine's name servers from outside the
		// node's network, past every rule there. A server in the node itself,
		// where nothing listens, keeps questions inside.
		"dns": []string{"127.0.0.1"},
	}
	if d.Runtime != "" {
		c["default-runtime"] = "labrunc"
		c["runtimes"] = map[string]any{"labrunc": map[string]string{"path": d.Runtime}}
	}
	return json.MarshalIndent(c, "", "  ")
}

// startTimeout is long for a busy machine; one second is usual.
const startTimeout = 60 * time.Second

// Start starts the daemon, which outlives this process, unless it runs.
func (d Daemon) Start(ctx context.Context) error {
	client := Client{Run: d.Run, Host: d.Host()}
	if d.pid() != 0 && client.Usable(ctx) {
		return nil
	}
	if err := d.spawn(); err != nil {
		return fmt.Errorf("dockerd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !client.Usable(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("dockerd does not answer on %s; see why with: tail %s", d.Host(), d.logFile())
		case <-tick.C:
		}
	}
	return nil
}

func (d Daemon) spawn() error {
	if err := os.MkdirAll(d.RunDir, 0o755); err != nil {
		return err
	}
	config, err := d.config()
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.configFile(), config, 0o644); err != nil {
		return err
	}
	log, err := os.Create(d.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("dockerd", "--config-file", d.configFile()) //nolint:gosec,noctx // it must outlive this process
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// pid is the daemon's process, or 0 if it does not run. A recycled pid is not
// taken for the daemon: the command line must name our configuration.
func (d Daemon) pid() int {
	content, err := os.ReadFile(d.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(cmdline), d.configFile()) {
		return 0
	}
	return pid
}

// Running reports whether the daemon runs.
func (d Daemon) Running() bool { return d.pid() != 0 }

// Stop ends the daemon and removes its run directory.
func (d Daemon) Stop(ctx context.Context) error {
	if pid := d.pid(); pid != 0 {
		if err := d.end(ctx, pid); err != nil {
			return fmt.Errorf("dockerd %d: %w", pid, err)
		}
	}
	return d.removeRunDir()
}

func (d Daemon) end(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for d.pid() != 0 {
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("still there 30 s after SIGTERM: killed"), syscall.Kill(pid, syscall.SIGKILL))
		case <-tick.C:
		}
	}
	return nil
}

// removeRunDir unmounts what dockerd left mounted below the run directory (the
// network namespaces of containers that ended with it), then removes it.
func (d Daemon) removeRunDir() error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], d.RunDir+"/") {
			err := syscall.Unmount(f[1], syscall.MNT_DETACH)
			if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) { // those: gone meanwhile
				return fmt.Errorf("unmount %s: %w", f[1], err)
			}
		}
	}
	if err := os.RemoveAll(d.RunDir); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	// dockerd and its shims use these whatever their configuration says. Another
	// Docker's are not empty, and stay.
	for _, dir := range []string{"/run/docker/plugins", "/run/docker", "/run/containerd/s", "/run/containerd"} {
		_ = os.Remove(dir)
	}
	return nil
}
