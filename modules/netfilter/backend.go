package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/portway/portway/modules/dataplane"
)

// Backend is a family's iptables programs of one kind.
type Backend struct {
	// Name is "nft" or "legacy".
	Name   string
	Family dataplane.Family
	// RandomFully says that the programs know Masquerade(true); see [Probe]
	// for whether the kernel does.
	RandomFully bool

	command string // with -save and -restore for the other two programs
}

// The back ends of iptables. Their rules do not see each other: a packet
// passes the rules of both.
const (
	NFT    = "nft"
	Legacy = "legacy"
)

// ChainsPerRestore is the size for [Transaction.Split] that makes a first
// start fast; zero means that it must not be cut. Measured with 10,000 chains
// of 5 rules on iptables 1.8.9: nft needs 5.4 s uncut, 1.7 s in parts of 500
// and 2.1 s in parts of 100; legacy moves the whole table with each part, so
// it needs 0.7 s uncut and 3.6 s in parts of 500.
func (b Backend) ChainsPerRestore() int {
	if b.Name == NFT {
		return 500
	}
	return 0
}

// lister is the command that prints a table. iptables-nft-save 1.8.9 looks at
// all tables for each: 0.9 s for an empty one besides 10,000 chains in nat,
// where -S needs no time. iptables-legacy-save is the faster one of the two.
func (b Backend) lister(t Table) []string {
	if b.Name == NFT {
		return []string{b.command, "-t", string(t), "-S"}
	}
	return []string{b.command + "-save", "-t", string(t)}
}

// asSaved makes what lister prints look like what iptables-save does. How the
// program ended says whether it is complete.
func (b Backend) asSaved(t Table, out io.Reader) io.Reader {
	if b.Name == NFT {
		return io.MultiReader(strings.NewReader("*"+string(t)+"\n"), out, strings.NewReader("COMMIT\n"))
	}
	return out
}

// program is iptables or ip6tables.
func program(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Backends finds the back ends that are installed for a family, the one that
// plain "iptables" stands for first.
func Backends(ctx context.Context, f dataplane.Family) ([]Backend, error) {
	plain, err := backend(ctx, program(f), f)
	if err != nil {
		return nil, err
	}
	found := []Backend{plain}
	for _, name := range []string{NFT, Legacy} {
		if name == plain.Name {
			continue
		}
		if b, err := backend(ctx, program(f)+"-"+name, f); err == nil && b.Name == name {
			found = append(found, b)
		}
	}
	return found, nil
}

// backend finds one set of programs by its first name. Which kind it is, the
// version says; before 1.8 there was only one.
func backend(ctx context.Context, command string, f dataplane.Family) (Backend, error) {
	for _, part := range []string{"", "-save", "-restore"} {
		if _, err := exec.LookPath(command + part); err != nil {
			return Backend{}, fmt.Errorf("iptables: the program %s%s is missing: install the package iptables", command, part)
		}
	}
	ipt, err := iptables.New(iptables.Path(command))
	if err != nil {
		return Backend{}, fmt.Errorf("iptables: %s does not run: %w", command, err)
	}
	if err := oldEnough(ipt.GetIptablesVersion()); err != nil {
		return Backend{}, fmt.Errorf("iptables: %s %w", command, err)
	}
	b := Backend{Name: Legacy, Family: f, RandomFully: ipt.HasRandomFully(), command: command}
	if isNFT(ctx, command) {
		b.Name = NFT
	}
	return b, nil
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
func isNFT(ctx context.Context, command string) bool {
	if path, err := exec.LookPath(command); err == nil {
		target, _ := filepath.EvalSymlinks(path) // empty if it fails
		switch filepath.Base(target) {
		case "xtables-nft-multi":
			return true
		case "xtables-legacy-multi":
			return false
		}
	}
	out, err := exec.CommandContext(ctx, command, "--version").Output()
	return err == nil && strings.Contains(string(out), "nf_tables")
}

// Detect chooses the back end that this node uses already: the one in which
// kubelet left its hint; else the one that holds more rules; else the one
// that plain "iptables" stands for. One that this kernel cannot run does not
// count.
func Detect(ctx context.Context, f dataplane.Family) (Backend, error) {
	found, err := Backends(ctx, f)
	if err != nil {
		return Backend{}, err
	}
	var working []Backend
	var errs []error
	for _, b := range found {
		hinted, err := b.holds(ctx, Mangle, isHint)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("iptables: %w", reason(Mangle, err)))
		case len(hinted) > 0:
			return b, nil
		default:
			working = append(working, b)
		}
	}
	if len(working) == 0 {
		return Backend{}, errors.Join(errs...)
	}
	return fullest(ctx, working)
}

// fullest is the back end with the most rules, of equals the first.
func fullest(ctx context.Context, backends []Backend) (Backend, error) {
	if len(backends) == 1 {
		return backends[0], nil
	}
	best, most := backends[0], -1
	for _, b := range backends {
		n, err := b.countRules(ctx)
		if err != nil {
			return Backend{}, fmt.Errorf("iptables: %w", err)
		}
		if n > most {
			best, most = b, n
		}
	}
	return best, nil
}

// isHint says whether kubelet makes a chain of this name in mangle, so that
// others can tell its back end (KEP-3178).
func isHint(chain string) bool {
	return chain == "KUBE-IPTABLES-HINT" || chain == "KUBE-KUBELET-CANARY"
}

// countRules counts up to enough: with that many rules there is no doubt, and
// a save of a large table takes seconds.
func (b Backend) countRules(ctx context.Context) (int, error) {
	const enough = 1000
	n, stop := 0, errors.New("enough")
	for _, t := range Tables() {
		err := NewHost(b, 0).Save(ctx, t, func(c Chain) error {
			if n += len(c.Rules); n >= enough {
				return stop
			}
			return nil
		})
		if errors.Is(err, stop) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	return n, nil
}

// holds names the chains of a table that ours wants.
func (b Backend) holds(ctx context.Context, t Table, ours func(chain string) bool) ([]string, error) {
	var names []string
	err := NewHost(b, 0).Save(ctx, t, func(c Chain) error {
		if ours(c.Name) {
			names = append(names, c.Name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// LeftInOthers names the chains of ours that back ends other than b hold, as
// "legacy nat KUBE-SERVICES". Packets pass them too.
func (b Backend) LeftInOthers(ctx context.Context, ours func(chain string) bool) ([]string, error) {
	found, err := Backends(ctx, b.Family)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, other := range found {
		if other.Name == b.Name {
			continue
		}
		for _, t := range Tables() {
			names, err := other.holds(ctx, t, ours)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				left = append(left, fmt.Sprintf("%s %s %s", other.Name, t, name))
			}
		}
	}
	return left, nil
}

// isMade says whether a table exists. The tables of iptables-legacy begin to
// exist, and to cost every packet time, when somebody looks at them.
func (b Backend) isMade(t Table) bool {
	if b.Name != Legacy {
		return true
	}
	family := "ip"
	if b.Family == dataplane.IPv6 {
		family = "ip6"
	}
	// Of this thread: tests have threads in namespaces of their own.
	names, err := os.ReadFile("/proc/thread-self/net/" + family + "_tables_names")
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false // the module is not there, nor its tables
	case err != nil:
		return true // let iptables say what is wrong
	}
	return slices.Contains(strings.Fields(string(names)), string(t))
}
