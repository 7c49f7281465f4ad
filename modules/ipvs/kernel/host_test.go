package kernel_test

import (
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/ipvs/kernel"
)

// enterNamespace moves the test's goroutine into a new network namespace, for
// good: its thread ends with it. Loopback is up there: without a device that
// is, the kernel takes every IPv4 address for one of broadcast, and refuses it
// as a real server.
func enterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("a new network namespace: %v: run as root", err)
	}
	if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err != nil {
		t.Fatalf("setting loopback up: %v", err)
	}
}

// openHost opens the virtual servers of a new network namespace.
func openHost(t testing.TB) *kernel.Host {
	t.Helper()
	enterNamespace(t)
	h, err := kernel.Open(t.Context())
	if err != nil {
		t.Fatalf("%v; or run the tests with -exec build/tools/secondkernel", err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func TestServersOfTheKernel(t *testing.T) {
	tryBehaviours(t, func(t *testing.T) kernel.Servers { return openHost(t) })
}
