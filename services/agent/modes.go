package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/portway/portway/modules/dataplane"
)

// Modes are the proxy modes that there are. To add one, add it here.
func Modes() []dataplane.Mode {
	return []dataplane.Mode{
		unbuilt("iptables"),
		unbuilt("ipvs"),
		unbuilt("userspace"),
		unbuilt("nftables"),
	}
}

// bestModes is the order in which modes are tried if none is named. A mode
// that is not in it is used by name only: a cluster must not change under its
// owner because a kernel module was loaded.
func bestModes() []string { return []string{"iptables", "userspace"} }

// ModeNames returns the names that may be configured.
func ModeNames(modes []dataplane.Mode) []string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = m.Name
	}
	return names
}

// fallbackOrder is the order in which modes are tried for a wish, which may be
// blank.
func fallbackOrder(wish string) []string {
	order := bestModes()
	if wish == "" {
		return order
	}
	with := []string{wish}
	for _, name := range order {
		if name != wish {
			with = append(with, name)
		}
	}
	return with
}

// unbuilt is a mode by a name that owners of clusters know and this program
// does not have. It can be asked for, cannot run, and so falls back.
func unbuilt(name string) dataplane.Mode {
	return dataplane.Mode{
		Name: name,
		Probe: func(context.Context, dataplane.Family) error {
			return errors.New("this build of Portway does not have it")
		},
		Open: func(context.Context, dataplane.Family) (dataplane.Plane, error) {
			return nil, fmt.Errorf("this build of Portway does not have the %s mode", name)
		},
		Cleanup: func(context.Context, dataplane.Family) error { return nil },
	}
}

// Cleanup removes what all modes, and a kube-proxy before them, have made in
// the kernel, in both families. The error names everything that is left.
func Cleanup(ctx context.Context, modes []dataplane.Mode) error {
	var errs []error
	for _, m := range modes {
		for _, f := range dataplane.Families() {
			if err := m.Cleanup(ctx, f); err != nil {
				errs = append(errs, fmt.Errorf("clean up after the %s mode for %s: %w", m.Name, f, err))
			}
		}
	}
	return errors.Join(errs...)
}
