package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is one network namespace.
type Host struct {
	name  string
	ns    *os.File
	links *netlink.Handle
}

func newHost(name string) (*Host, error) {
	h := &Host{name: name}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		h.ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	if h.links, err = netlink.NewHandleAt(netns.NsHandle(h.ns.Fd()), unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	return h, nil
}

func (h *Host) close() error {
	h.links.Close()
	return h.ns.Close()
}

// Do runs f on a thread inside. Sockets that f opens stay inside; goroutines
// that it starts are outside.
func (h *Host) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(h.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", h.name, err)
		}
		return f()
	})
}

// Start starts a program inside. It dies with the process that started it.
func (h *Host) Start(cmd *exec.Cmd) error {
	return h.Do(cmd.Start)
}

// Sysctl changes a setting of the namespace, such as "net.ipv4.ip_forward".
func (h *Host) Sysctl(name, value string) error {
	return h.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")), []byte(value), 0o644)
	})
}

// ForgetFlows empties the table of connections that are tracked. A flow that began
// before its Service was programmed stays untranslated for two minutes, and would
// take in the next one from the same port.
func (h *Host) ForgetFlows() error {
	if err := h.links.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("%s: forget flows: %w", h.name, err)
	}
	return nil
}

// onThread runs f on a thread that ends with it, so that no goroutine ever
// inherits the namespace that f enters.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
