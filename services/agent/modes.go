package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/iptables"
	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/modules/userspace"
	"github.com/portway/portway/services/agent/config"
)

// Modes are the proxy modes that there are. To add one, add it here. The log
// is for those that run in this process; nil discards.
func Modes(log *slog.Logger, forIPVS ipvs.Options) []dataplane.Mode {
	return []dataplane.Mode{
		iptables.Mode(iptables.Options{}),
		ipvs.Mode(forIPVS),
		userspace.Mode(userspace.Options{Log: log}),
		kubeProxyNFTables(),
	}
}

// prepare sets what the configured mode sets itself when it runs with the rights
// to, for an agent that will run without them.
func prepare(opts *config.Options) []error {
	if opts.Proxy.Mode == ipvs.Name {
		return ipvs.Prepare(opts.IPVS())
	}
	return nil
}

// bestModes is the order in which modes are tried if none is named. A mode
// that is not in it is used by name only: a cluster must not change under its
// owner because a kernel module was loaded.
func bestModes() []string { return []string{"iptables", "userspace"} }

// loopbackByDefault tells whether NodePorts answer on loopback although
// nodePortAddresses does not name it. They did in kube-proxy's iptables and
// userspace modes, and in no other.
func loopbackByDefault(mode string) bool { return mode == "iptables" || mode == "userspace" }

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
func fallbackOrder(modes []dataplane.Mode, wish string) []string {
	var order []string
	if wish != "" {
		order = append(order, wish)
	}
	for _, name := range bestModes() {
		built := slices.ContainsFunc(modes, func(m dataplane.Mode) bool { return m.Name == name && m.Open != nil })
		if built && name != wish {
			order = append(order, name)
		}
	}
	return order
}

// unbuilt is a mode by a name that owners of clusters know and this program
// does not have. It can be asked for, cannot run, and so falls back.
func unbuilt(name string) dataplane.Mode {
	return dataplane.Mode{
		Name: name,
		Probe: func(context.Context, dataplane.Family) error {
			return errors.New("this build of Portway does not have it")
		},
		Cleanup: func(context.Context, dataplane.Family) error { return nil },
	}
}

// Cleanup removes what all modes, and a kube-proxy before them, have made in
// the kernel, in the families that it knows. The error names everything that is
// left.
func Cleanup(ctx context.Context, modes []dataplane.Mode, families []dataplane.Family) error {
	var errs []error
	for _, m := range modes {
		for _, f := range families {
			errs = append(errs, m.Cleanup(ctx, f))
		}
	}
	return errors.Join(errs...)
}
