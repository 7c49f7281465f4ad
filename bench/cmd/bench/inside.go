package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside marks the process that has namespaces of its own.
const inside = "PORTWAY_BENCH_INSIDE"

// runInside runs this command again as the first process of namespaces of its
// own: when it ends, however it ends, so do all processes that it has started,
// and its networks and files are gone. No packet can leave the machine.
func runInside(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	// The second process is killed when the thread ends that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, program, os.Args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return errors.New("not all went well")
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("namespaces of its own: %w (cure: run it as root)", err)
	}
	return err
}

// settleInside gives the process a /proc that shows its processes, and an empty
// /run, where everything is written that need not stay.
func settleInside() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ fstype, target string }{{"proc", "/proc"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m.fstype, m.target, m.fstype, 0, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}
