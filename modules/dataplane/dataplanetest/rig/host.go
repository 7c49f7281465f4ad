package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is one network namespace of a rig. It may be used by many goroutines.
type Host struct {
	// Name is what the servers of the host answer with.
	Name string
	// Addr4 and Addr6 are the source of what the host sends.
	Addr4, Addr6 netip.Addr

	net   *os.File // the network namespace
	mnt   *os.File // the mount namespace, one per rig
	links *netlink.Handle
	crew  crew
}

// Addr is the host's address in the family of like.
func (h *Host) Addr(like netip.Addr) netip.Addr {
	if like.Unmap().Is4() {
		return h.Addr4
	}
	return h.Addr6
}

// newHost makes a namespace with the loopback interface up.
func newHost(name string, mnt *os.File) (*Host, error) {
	h := &Host{Name: name, mnt: mnt, crew: newCrew()}
	var err error
	if h.Addr4, h.Addr6, err = Addrs(name); err != nil {
		return nil, err
	}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		var err error
		h.net, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	if h.links, err = netlink.NewHandleAt(netns.NsHandle(h.net.Fd()), unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return nil, errors.Join(fmt.Errorf("host %s: open netlink: %w", name, err), h.net.Close())
	}
	return h, nil
}

// newMountNamespace gives the rig an empty /run of its own.
func newMountNamespace() (*os.File, error) {
	var ns *os.File
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("new mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("rig", "/run", "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount tmpfs on /run: %w", err)
		}
		var err error
		ns, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	return ns, err
}

func (h *Host) close() error {
	h.crew.dismiss()
	h.links.Close()
	return h.net.Close()
}

// onThread runs f on an operating system thread that ends with it, so that no
// other goroutine ever inherits the namespaces that f enters.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Do runs f inside the host. It must not call t.Fatal or start goroutines that
// expect to be inside too. Sockets opened by f stay in the host.
func (h *Host) Do(f func() error) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	return onThread(func() error {
		if err := h.enter(dir); err != nil {
			return fmt.Errorf("enter %s: %w", h.Name, err)
		}
		return f()
	})
}

// enter moves the calling thread. A mount namespace can be entered only by a
// thread with a working directory of its own, and resets it.
func (h *Host) enter(dir string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(h.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	return h.enterNetwork()
}

func (h *Host) enterNetwork() error {
	return unix.Setns(int(h.net.Fd()), unix.CLONE_NEWNET)
}

// Run executes a program inside the host and returns what it prints. The error
// has the command and what it complained about.
func (h *Host) Run(ctx context.Context, argv ...string) (string, error) {
	return h.RunInput(ctx, "", argv...)
}

// RunInput is Run with something to read for the program.
func (h *Host) RunInput(ctx context.Context, input string, argv ...string) (string, error) {
	var out, complaint bytes.Buffer
	err := h.Do(func() error {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
		return cmd.Run()
	})
	if err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s",
			h.Name, strings.Join(argv, " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.String(), nil
}

// Sysctl reads a network setting such as "net.ipv4.ip_forward".
func (h *Host) Sysctl(name string) (value string, err error) {
	err = h.onNetwork(func() error {
		b, err := os.ReadFile(sysctlPath(name))
		value = string(bytes.TrimSpace(b))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%s: read sysctl %s: %w", h.Name, name, err)
	}
	return value, nil
}

// SetSysctl changes a network setting of the host.
func (h *Host) SetSysctl(name, value string) error {
	return h.setSysctls([]setting{{name, value}})
}

type setting struct{ name, value string }

func (h *Host) setSysctls(settings []setting) error {
	return h.onNetwork(func() error {
		for _, s := range settings {
			if err := os.WriteFile(sysctlPath(s.name), []byte(s.value), 0o644); err != nil {
				return fmt.Errorf("%s: set sysctl %s to %q: %w", h.Name, s.name, s.value, err)
			}
		}
		return nil
	})
}

func sysctlPath(name string) string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
}
