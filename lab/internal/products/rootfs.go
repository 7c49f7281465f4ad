package products

import (
	"context"
	"fmt"
	"strings"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/command"
)

// debian is the release that root file systems are made of.
const debian = "bookworm"

// nodePackages is what a node of kind needs besides the programs built here.
func nodePackages() []string {
	return []string{
		"ca-certificates", "conntrack", "curl", "dbus", "e2fsprogs", "ebtables", "ethtool", "hostname", "iproute2",
		"ipset", "iptables", "jq", "kmod", "libseccomp2", "mount", "nftables", "pigz", "procps", "runc", "socat",
		"systemd", "util-linux",
	}
}

// podPackages serve every pod of the lab: the agent (iptables, ipset,
// conntrack, kmod), kube-proxy (nftables), the sample (nginx) and the clients
// and servers of tests.
// One file system for all is one layer, which a node stores and unpacks once.
func podPackages() []string {
	return []string{
		"bash", "bind9-dnsutils", "ca-certificates", "conntrack", "curl", "iproute2", "ipset", "iptables",
		"iputils-ping", "kmod", "netcat-openbsd", "nftables", "nginx-light", "procps", "socat", "tcpdump", "wget",
	}
}

// bootable are mmdebstrap hooks that leave only those systemd units which make
// sense in a container, as kind's own base image does, and no sysctls of
// Debian's: they are for a whole machine.
func bootable() []string {
	return []string{`cd "$1" && rm -f etc/systemd/system/*.wants/* ` +
		"lib/systemd/system/multi-user.target.wants/* lib/systemd/system/local-fs.target.wants/* " +
		"lib/systemd/system/basic.target.wants/* lib/systemd/system/sockets.target.wants/*udev* " +
		"lib/systemd/system/sockets.target.wants/*initctl* " +
		"lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service " +
		"usr/lib/sysctl.d/* etc/sysctl.conf etc/sysctl.d/*"}
}

// rootfs makes a tar file of a Debian system with the packages, after running
// the hooks in it.
func (m Maker) rootfs(ctx context.Context, name string, packages, hooks []string, note func(string)) (string, error) {
	include := strings.Join(packages, ",")
	key := new(cache.Key).Add("suite", debian).Add("packages", include).Add("hooks", strings.Join(hooks, "\n"))
	return m.Store.Get(ctx, name, key, func(out string) error {
		args := []string{"mmdebstrap", "--variant=minbase", "--include=" + include, "--format=tar"}
		for _, dir := range []string{"doc", "info", "locale", "man"} {
			args = append(args, "--dpkgopt=path-exclude=/usr/share/"+dir+"/*")
		}
		for _, hook := range hooks {
			args = append(args, "--customize-hook="+hook)
		}
		_, err := m.Run.Run(ctx, command.Cmd{
			Args: append(args, debian, out),
			Line: func(line string) { note(fmt.Sprintf("%s: %s", name, strings.TrimPrefix(line, "I: "))) },
		})
		return err
	})
}
