// Package machine finds out what this machine offers, and installs what is
// missing.
package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/portway/portway/lab/internal/command"
)

// need is a file or program, and the Debian package that brings it.
type need struct{ program, file, pkg string }

// offlineNeeds are for a cluster made without a registry.
func offlineNeeds() []need {
	return []need{
		{program: "docker", pkg: "docker.io"},
		{program: "iptables", pkg: "iptables"},
		{program: "mmdebstrap", pkg: "mmdebstrap"},
		{file: "/usr/share/keyrings/debian-archive-keyring.gpg", pkg: "debian-archive-keyring"},
	}
}

// daemonNeeds are for a Docker daemon of our own.
func daemonNeeds() []need {
	return []need{
		{program: "dockerd", pkg: "docker.io"},
		{program: "runc", pkg: "runc"},
		{program: "ip", pkg: "iproute2"},
		{program: "nft", pkg: "nftables"},
	}
}

// Missing are the Debian packages that a cluster without a registry still
// needs here; guest: and one of its nodes a kernel of its own.
func Missing(ownDaemon, guest bool) []string {
	needs := offlineNeeds()
	if ownDaemon {
		needs = append(needs, daemonNeeds()...)
	}
	if guest {
		needs = append(needs, need{program: umlProgram, pkg: "user-mode-linux"})
	}
	return missing(needs, exec.LookPath, os.Stat)
}

func missing(needs []need, look func(string) (string, error), stat func(string) (fs.FileInfo, error)) []string {
	var packages []string
	for _, n := range needs {
		var err error
		if n.program != "" {
			_, err = look(n.program)
		} else {
			_, err = stat(n.file)
		}
		if err != nil {
			packages = append(packages, n.pkg)
		}
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// Install installs Debian packages, without starting the services in them.
func Install(ctx context.Context, run command.Runner, packages []string, note func(string)) error {
	if len(packages) == 0 {
		return nil
	}
	by := "apt-get install " + strings.Join(packages, " ")
	if !Debian() {
		return fmt.Errorf("not a Debian system, so the lab cannot install what is missing here; Debian would take: %s", by)
	}
	if !Root() {
		return fmt.Errorf("missing packages, and only root may install them: sudo %s", by)
	}
	defer keepServicesDown()()
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	for _, args := range [][]string{
		{"apt-get", "update", "--quiet"},
		append([]string{"apt-get", "install", "--yes", "--quiet", "--no-install-recommends"}, packages...),
	} {
		note(strings.Join(args[:2], " "))
		if _, err := run.Run(ctx, command.Cmd{Args: args, Env: env}); err != nil {
			return err
		}
	}
	return nil
}

// keepServicesDown makes Debian's packages not start their services while they
// are installed: docker.io would start a daemon beside ours. It returns what
// ends that. A machine with a policy of its own keeps it.
func keepServicesDown() (end func()) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return func() {}
	}
	_, writeErr := f.WriteString("#!/bin/sh\nexit 101\n")
	if errors.Join(writeErr, f.Close()) != nil {
		_ = os.Remove(policy)
		return func() {}
	}
	return func() { _ = os.Remove(policy) }
}

// Root reports whether we may do everything.
func Root() bool { return os.Geteuid() == 0 }

// Debian reports whether apt-get and Debian's package names are right here.
func Debian() bool {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if line := lines.Text(); (strings.HasPrefix(line, "ID=") || strings.HasPrefix(line, "ID_LIKE=")) && strings.Contains(line, "debian") {
			return true
		}
	}
	return false
}

// CgroupV1 reports whether the machine mounts the old cgroup hierarchies.
func CgroupV1() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err != nil
}

// Debian's package user-mode-linux.
const (
	umlProgram = "linux.uml"
	umlModules = "/usr/lib/uml/modules"
)

// UserModeLinux finds a kernel that runs as a process, and the directory with
// its modules, which is named as its version.
func UserModeLinux(ctx context.Context, run command.Runner) (program, modules string, err error) {
	program, err = exec.LookPath(umlProgram)
	if err != nil {
		return "", "", fmt.Errorf("user-mode-linux is not installed; apt-get install user-mode-linux: %w", err)
	}
	version, err := run.Run(ctx, command.New(program, "--version"))
	if err != nil {
		return "", "", err
	}
	modules = filepath.Join(umlModules, strings.TrimSpace(version))
	if _, err := os.Stat(modules); err != nil {
		return "", "", fmt.Errorf("modules of %s: %w", program, err)
	}
	return program, modules, nil
}

// LastProcessor is the number of the last one that this process may use.
func LastProcessor() (string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", fmt.Errorf("processors: %w", err)
	}
	return lastProcessor(string(status))
}

// lastProcessor reads a list like "0-3,8".
func lastProcessor(status string) (string, error) {
	_, list, found := strings.Cut(status, "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	last := strings.TrimSpace(list[strings.LastIndexAny(list, "-,")+1:])
	if _, err := strconv.ParseUint(last, 10, 16); !found || err != nil {
		return "", fmt.Errorf("processors: the kernel lists %q", list)
	}
	return last, nil
}

// HasIPVS reports whether the kernel, which nodes share, can run ipvs mode. It
// loads the module if that is allowed.
func HasIPVS(ctx context.Context, run command.Runner) bool {
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		return true
	}
	_, err := run.Run(ctx, command.New("modprobe", "ip_vs"))
	return err == nil
}
