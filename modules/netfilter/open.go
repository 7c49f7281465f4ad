package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// OpenHost gives access to the kernel through the back end of that name, or
// through the one that this node uses already if it is empty.
func OpenHost(ctx context.Context, f dataplane.Family, backend string, lockWait time.Duration) (*Host, error) {
	if backend == "" {
		b, err := Detect(ctx, f)
		return NewHost(b, lockWait), err
	}
	all, err := Backends(ctx, f)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(all))
	for i, b := range all {
		if b.Name == backend {
			return NewHost(b, lockWait), nil
		}
		names[i] = b.Name
	}
	return nil, fmt.Errorf("the iptables back end %q is not installed: there is %s", backend, strings.Join(names, " and "))
}

// OpenAll gives access to the kernel through every back end that is installed,
// the one that plain "iptables" stands for first. Their sets are the same.
func OpenAll(ctx context.Context, f dataplane.Family, lockWait time.Duration) ([]Kernel, error) {
	all, err := Backends(ctx, f)
	if err != nil {
		return nil, err
	}
	hosts := make([]Kernel, len(all))
	for i, b := range all {
		hosts[i] = NewHost(b, lockWait)
	}
	return hosts, nil
}

// RemoveFromAll removes what is owned from every back end, and then the sets,
// which belong to none of them.
func RemoveFromAll(ctx context.Context, f dataplane.Family, o Owned, lockWait time.Duration) error {
	all, err := OpenAll(ctx, f, lockWait)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range all {
		errs = append(errs, Remove(ctx, k, Owned{Chain: o.Chain, Rule: o.Rule}))
	}
	errs = append(errs, Remove(ctx, all[0], Owned{Set: o.Set}))
	return errors.Join(errs...)
}

// LocalAddresses asks this network namespace which addresses it has.
func LocalAddresses() (func(netip.Addr) bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this node: %w", err)
	}
	has := make(map[netip.Addr]bool)
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			has[p.Addr().Unmap()] = true
		}
	}
	return func(a netip.Addr) bool { return has[a] }, nil
}

// WarnOfOthers says what an operator must know of rules of ours that other back
// ends hold; nothing if there are none.
func (b Backend) WarnOfOthers(ctx context.Context, ours func(chain string) bool) []string {
	left, err := b.LeftInOthers(ctx, ours)
	switch {
	case err != nil:
		return []string{fmt.Sprintf("whether another iptables back end holds rules of ours is not known: %v", err)}
	case len(left) > 0:
		return []string{fmt.Sprintf("iptables-%s is in use for %s, but another back end holds rules that packets pass too: %s",
			b.Name, b.Family, strings.Join(left, ", "))}
	}
	return nil
}
