package addresses

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long a burst of changes is waited for: a pod that starts
	// changes several addresses at once.
	settle = 100 * time.Millisecond
	// retry follows a list that failed.
	retry = time.Second
	// relist makes up for a change of which the kernel did not tell.
	relist = time.Minute
)

// A Watcher knows the addresses of the network namespace in which it was
// opened.
type Watcher struct {
	log       *slog.Logger
	list      func() ([]netip.Prefix, error)
	subscribe func(ctx context.Context) (<-chan struct{}, error)
}

// Open returns a Watcher that leaves out the addresses on the devices named.
func Open(log *slog.Logger, exclude ...string) (*Watcher, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket to list addresses: %w", err)
	}
	return &Watcher{
		log:       log,
		list:      func() ([]netip.Prefix, error) { return list(h, exclude) },
		subscribe: subscribe,
	}, nil
}

// List returns the addresses now, with the lengths of their networks, sorted.
func (w *Watcher) List() ([]netip.Prefix, error) { return w.list() }

// Run calls report with each new list until the context ends.
func (w *Watcher) Run(ctx context.Context, report func([]netip.Prefix)) {
	var known []netip.Prefix
	var changes <-chan struct{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-changes:
			if !ok {
				changes = nil // the timer subscribes anew
			}
			timer.Reset(settle)
			continue
		case <-timer.C:
		}
		wait := relist
		if changes == nil {
			changes = w.trySubscribe(ctx, &wait)
		}
		now, err := w.list()
		switch {
		case err != nil:
			w.log.Warn("Addresses of this node could not be listed; those known stay", "err", err)
			wait = retry
		case known == nil || !slices.Equal(known, now):
			known = now
			report(now)
		}
		timer.Reset(wait)
	}
}

// trySubscribe shortens the wait if it fails. Subscribing comes before listing,
// or what happens in between would be lost.
func (w *Watcher) trySubscribe(ctx context.Context, wait *time.Duration) <-chan struct{} {
	changes, err := w.subscribe(ctx)
	if err != nil {
		w.log.Warn("Changes of addresses cannot be watched; they are found a little later", "err", err)
		*wait = retry
	}
	return changes
}

// subscribe returns a channel that is closed when the subscription breaks.
func subscribe(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate)
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
		ErrorCallback: func(error) {}, // the channel closes, which says as much
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	changes := make(chan struct{}, 1)
	go func() {
		defer close(changes)
		for range updates {
			select {
			case changes <- struct{}{}:
			default: // one is enough
			}
		}
	}()
	return changes, nil
}

func list(h *netlink.Handle, exclude []string) ([]netip.Prefix, error) {
	ours, err := indexes(h, exclude)
	if err != nil {
		return nil, err
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		// That includes a list that a change interrupted.
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var ps []netip.Prefix
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || slices.Contains(ours, a.LinkIndex) {
			continue
		}
		bits, _ := a.Mask.Size()
		ps = append(ps, netip.PrefixFrom(ip.Unmap(), bits))
	}
	slices.SortFunc(ps, netip.Prefix.Compare)
	return slices.Compact(ps), nil
}

func indexes(h *netlink.Handle, names []string) ([]int, error) {
	var list []int
	for _, name := range names {
		link, err := h.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look up the device %s: %w", name, err)
		}
		list = append(list, link.Attrs().Index)
	}
	return list, nil
}
