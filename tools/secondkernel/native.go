package main

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// probeHost says what this machine's kernel lacks of what the ipvs mode needs,
// nil if nothing. It asks in a new network namespace: a kernel may have IPVS and
// not give it to the namespaces of a container, and the list of modules says
// nothing about what is built in. Asking loads the modules.
func probeHost() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends in its namespace
		result <- probeNamespace()
	}()
	return <-result
}

func probeNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace: %w", err)
	}
	links, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer links.Close()
	if _, err := links.GenlFamilyGet("IPVS"); err != nil {
		return fmt.Errorf("ip_vs: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "kube-ipvs0"
	if err := links.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("dummy device: %w", err)
	}
	return nil
}

// execHere becomes the command.
func execHere(command []string) error {
	argv, err := resolve(command)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
}
