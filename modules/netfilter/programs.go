package netfilter

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-iptables/iptables"

	"github.com/portway/portway/modules/dataplane"
)

// program is iptables or ip6tables.
func program(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// backend finds one set of programs by its first name. Which kind it is, the
// version says; before 1.8 there was only one.
func backend(ctx context.Context, command string, f dataplane.Family) (Backend, error) {
	for _, part := range []string{"", "-save", "-restore"} {
		if _, err := exec.LookPath(command + part); err != nil {
			return Backend{}, fmt.Errorf("iptables: the program %s%s is missing: install the package iptables", command, part)
		}
	}
	v, err := versionOf(ctx, command)
	if err != nil {
		return Backend{}, fmt.Errorf("iptables: %s %w", command, err)
	}
	return Backend{Name: v.name, Family: f, RandomFully: v.randomFully, command: command}, nil
}

// version is what a program says of itself.
type version struct {
	name        string // of the back end
	randomFully bool
}

// file tells programs, and versions of them, apart.
type file struct {
	path     string
	size     int64
	modified time.Time
}

// versions holds what programs have said: iptables and ip6tables are links to
// one file, and to ask it takes tens of milliseconds.
var versions sync.Map // of version by file

func versionOf(ctx context.Context, command string) (version, error) {
	program, known := fileOf(command)
	if v, ok := versions.Load(program); known && ok {
		return v.(version), nil
	}
	ipt, err := iptables.New(iptables.Path(command))
	if err != nil {
		return version{}, fmt.Errorf("does not run: %w", err)
	}
	if err := oldEnough(ipt.GetIptablesVersion()); err != nil {
		return version{}, err
	}
	v := version{name: Legacy, randomFully: ipt.HasRandomFully()}
	if isNFT(ctx, command, program.path) {
		v.name = NFT
	}
	if known {
		versions.Store(program, v)
	}
	return v, nil
}

// fileOf follows the links of a command.
func fileOf(command string) (f file, ok bool) {
	path, err := exec.LookPath(command)
	if err != nil {
		return f, false
	}
	if f.path, err = filepath.EvalSymlinks(path); err != nil {
		return f, false
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return f, false
	}
	f.size, f.modified = info.Size(), info.ModTime()
	return f, true
}

// oldEnough refuses what has no --wait for iptables-restore.
func oldEnough(major, minor, patch int) error {
	if slices.Compare([]int{major, minor, patch}, []int{1, 6, 2}) < 0 {
		return fmt.Errorf("is version %d.%d.%d: install 1.6.2 or later", major, minor, patch)
	}
	return nil
}

// isNFT tells the kind of a program by the one that it is a link to, and if that
// says nothing, by its version.
func isNFT(ctx context.Context, command, target string) bool {
	switch filepath.Base(target) {
	case "xtables-nft-multi":
		return true
	case "xtables-legacy-multi":
		return false
	}
	out, err := exec.CommandContext(ctx, command, "--version").Output()
	return err == nil && strings.Contains(string(out), "nf_tables")
}
