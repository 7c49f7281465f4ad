package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// softdeps are what modules need and do not say: sctp asks for its ciphers while
// it loads, by names that lead to no module.
const softdeps = "softdep sctp pre: hmac md5 sha1 crc32c\n"

// writeModprobe makes a modprobe in folder that knows the modules of the other
// kernel. It serves that kernel, which calls it when something needs a module,
// and programs that call it by name or, as iptables does, by the kernel's
// setting; so it must not lie in a directory over which a test mounts its own.
// kmod looks for lib/modules/RELEASE below a directory of our choice, and our
// file stands in for the machine's /etc/modprobe.d.
func writeModprobe(folder string, k kernel) (path string, err error) {
	path = filepath.Join(folder, "modprobe")
	tree := filepath.Join(folder, "lib/modules")
	script := fmt.Sprintf("#!/bin/sh\nexec %s --dirname=%s --config=%[2]s/modprobe.conf \"$@\"\n", k.modprobe, folder)
	return path, errors.Join(
		os.WriteFile(path, []byte(script), 0o755),
		os.WriteFile(path+".conf", []byte(softdeps), 0o644),
		os.MkdirAll(tree, 0o755),
		os.Symlink(k.modules, filepath.Join(tree, filepath.Base(k.modules))),
	)
}

// linkLegacy makes iptables mean iptables-legacy, where the machine has it: the
// other kernel is built without nftables for IP.
func linkLegacy(folder string) error {
	var errs []error
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			if legacy, err := lookPath(name + "-legacy" + suffix); err == nil {
				errs = append(errs, os.Symlink(legacy, filepath.Join(folder, name+suffix)))
			}
		}
	}
	return errors.Join(errs...)
}
