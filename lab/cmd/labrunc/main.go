// Command labrunc is runc for machines whose capability bounding set is not
// full: it drops the capabilities that runc could not give from the request,
// then becomes runc. The lab's own dockerd uses it as its runtime.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/portway/portway/lab/internal/ociruntime"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "labrunc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if file := ociruntime.File(args); file != "" {
		allowed, _, err := ociruntime.Bounding()
		if err != nil {
			return err
		}
		if err := ociruntime.EditFile(file, allowed); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return fmt.Errorf("runc is not installed; apt-get install runc: %w", err)
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}
