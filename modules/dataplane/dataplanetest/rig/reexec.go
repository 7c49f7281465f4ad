package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// inside marks the process that Main has started in namespaces of its own.
const inside = "PORTWAY_RIG_INSIDE"

// Main is for TestMain of packages that build rigs:
//
//	func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }
//
// It runs the tests in a second process, which has a network namespace without
// any link, so that not even a test that forgets its rig reaches the machine's
// network, and for a caller who is not root a user namespace in which it is.
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" {
		return m.Run()
	}
	code, err := reexec()
	if err != nil {
		fmt.Fprintf(os.Stderr, "These tests need network namespaces: run them as root, or where users may create user namespaces: %v.\n", err)
		return 1
	}
	return code
}

// reexec runs this program again, with the same arguments, and waits for it.
func reexec() (code int, err error) {
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}
	// The signal for the second process comes when the thread that started it
	// ends, so the thread must live as long as the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program, os.Args[1:]...) //nolint:noctx // lives as long as this process
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		becomeRoot(cmd.SysProcAttr)
	}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// becomeRoot asks for a user namespace in which the caller is root.
func becomeRoot(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
}
