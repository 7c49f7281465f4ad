package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// beInit is the guest's first process: it prepares the guest, runs the job and
// switches off.
func beInit(folder string) {
	if err := serveHost(folder); err != nil {
		fmt.Fprintf(os.Stderr, "secondkernel: guest: %v\n", err) // the kernel's console
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func serveHost(folder string) error {
	j, err := readJob(folder)
	if err != nil {
		return err
	}
	if err := prepareGuest(j); err != nil {
		return err
	}
	host, err := openLine(0)
	if err != nil {
		return err
	}
	code, err := runJob(j, host)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(host, "exit %d\n", code); err != nil {
		return err
	}
	return drain(host)
}

// mounts are the guest's own file systems, in this order.
var mounts = []struct{ fstype, target, options string }{
	{"proc", "/proc", ""},
	{"sysfs", "/sys", ""},
	{"devtmpfs", "/dev", ""},
	{"tmpfs", "/run", "mode=755"},
	{"tmpfs", "/tmp", "mode=1777"},
}

func prepareGuest(j job) error {
	for _, m := range mounts {
		if err := unix.Mount(m.fstype, m.target, m.fstype, 0, m.options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
	}
	for _, folder := range j.Visible {
		if err := mountFolder(folder, unix.MS_RDONLY); err != nil {
			return err
		}
	}
	for _, folder := range j.Writable {
		if err := mountFolder(folder, 0); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte(j.Modprobe), 0o644); err != nil {
		return err
	}
	return errors.Join(load(j.Modprobe, preloaded...), loopbackUp())
}

// preloaded are the modules that are there from the start. No program expects to have
// to ask for IPv6. A virtual server asks for its scheduler's by itself, and this
// kernel sometimes sleeps for ever when several do at a time.
var preloaded = []string{
	"ipv6", "ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_lc", "ip_vs_wlc", "ip_vs_lblc", "ip_vs_lblcr", "ip_vs_sh", "ip_vs_dh",
	"ip_vs_sed", "ip_vs_nq", "ip_vs_fo", "ip_vs_ovf", "ip_vs_mh", "dummy",
}

// mountFolder makes a folder of the machine appear at the same path.
func mountFolder(folder string, flags uintptr) error {
	if len(hiddenFolders([]string{folder})) > 0 {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("machine", folder, "hostfs", flags, folder); err != nil {
		return fmt.Errorf("mount %s: %w", folder, err)
	}
	return nil
}

func load(modprobe string, modules ...string) error {
	cmd := exec.Command(modprobe, append([]string{"--all"}, modules...)...) //nolint:noctx // the host has a time limit for everything
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// runJob runs the command and returns its exit code.
func runJob(j job, host *os.File) (int, error) {
	stdout, err := openLine(1)
	if err != nil {
		return 0, err
	}
	stderr, err := openLine(2)
	if err != nil {
		return 0, err
	}
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	if err := os.Chdir(j.Dir); err != nil {
		return 0, err
	}
	p, err := os.StartProcess(j.Argv[0], j.Argv, &os.ProcAttr{
		Env: guestEnv(j), Files: []*os.File{stdin, stdout, stderr}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprintf(stderr, "secondkernel: %v\n", err)
		return failed, drain(stderr)
	}
	go passSignals(host, p.Pid)
	code, err := reap(p.Pid)
	return code, errors.Join(err, drain(stdout), drain(stderr))
}

// guestEnv puts our modprobe in front of the machine's.
func guestEnv(j job) []string {
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	var rest []string
	for _, variable := range j.Env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value + ":" + path
		} else {
			rest = append(rest, variable)
		}
	}
	return append(rest, "PATH="+filepath.Dir(j.Modprobe)+":"+path)
}

// passSignals gives the command the signals that the host sends.
func passSignals(host *os.File, pid int) {
	lines := bufio.NewScanner(host)
	for lines.Scan() {
		var n int
		if _, err := fmt.Sscanf(lines.Text(), "signal %d", &n); err == nil {
			_ = syscall.Kill(pid, syscall.Signal(n))
		}
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // the host has hung up
}

// reap waits for all children, since orphans become ours, until the command has
// ended. As in a shell the code of a command that a signal killed is 128 and the
// number.
func reap(command int) (int, error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case pid == command && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == command && status.Exited():
			return status.ExitStatus(), nil
		}
	}
}

// openLine opens a serial line to the host, and makes it pass bytes as they are.
func openLine(n int) (*os.File, error) {
	name := fmt.Sprintf("/dev/ttyS%d", n)
	fd, err := syscall.Open(name, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	mode.Iflag, mode.Oflag, mode.Lflag = 0, 0, 0
	mode.Cc[unix.VMIN], mode.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, mode); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// drain waits until the host has got all that was written.
func drain(line *os.File) error {
	if err := unix.IoctlSetInt(int(line.Fd()), unix.TCSBRK, 1); err != nil {
		return fmt.Errorf("drain %s: %w", line.Name(), err)
	}
	return nil
}
