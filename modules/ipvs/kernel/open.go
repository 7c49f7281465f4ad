package kernel

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoIPVS: the kernel has no IPVS, and no module of it could be loaded.
var ErrNoIPVS = errors.New("the kernel has no IPVS: load the module ip_vs (modprobe ip_vs)")

// Open opens the virtual servers of the calling thread's network namespace. If
// there is no IPVS it tries to load the module ip_vs.
func Open(ctx context.Context) (*Host, error) {
	kind, err := findFamily(ctx)
	if err != nil {
		return nil, err
	}
	s, err := openSocket(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	return &Host{socket: s, table: openTable(), kind: kind}, nil
}

// findFamily returns the number of IPVS among the families of generic netlink.
func findFamily(ctx context.Context) (uint16, error) {
	family, err := netlink.GenlFamilyGet(familyName)
	if errors.Is(err, unix.ENOENT) {
		loadModule(ctx, "ip_vs")
		family, err = netlink.GenlFamilyGet(familyName)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, ErrNoIPVS
	case err != nil:
		return 0, fmt.Errorf("asking the kernel for IPVS: %w", err)
	}
	return family.ID, nil
}

// loadModule tries to load a module. Whether it is there shows in what is tried
// next, so that a machine without modprobe, such as a container, may have the
// module loaded or compiled in.
func loadModule(ctx context.Context, name string) {
	_ = exec.CommandContext(ctx, "modprobe", "--quiet", name).Run()
}
