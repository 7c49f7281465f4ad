package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
		hinted, err := b.holds(ctx, []Table{Mangle}, isHint)
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
	err := NewHost(b, 0).Save(ctx, Tables(), func(_ Table, c Chain) error {
		if n += len(c.Rules); n >= enough {
			return stop
		}
		return nil
	})
	if err != nil && !errors.Is(err, stop) {
		return 0, err
	}
	return n, nil
}

// holds names the chains of some tables that ours wants, as "nat KUBE-SERVICES".
func (b Backend) holds(ctx context.Context, tables []Table, ours func(chain string) bool) ([]string, error) {
	var names []string
	err := NewHost(b, 0).Save(ctx, tables, func(t Table, c Chain) error {
		if ours(c.Name) {
			names = append(names, fmt.Sprintf("%s %s", t, c.Name))
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
		names, err := other.holds(ctx, Tables(), ours)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			left = append(left, other.Name+" "+name)
		}
	}
	return left, nil
}
