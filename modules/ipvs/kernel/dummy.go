package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// Dummy is the real Device.
type Dummy struct{}

var _ Device = Dummy{}

// anchor is an address of the device that nobody uses. When a device loses its
// last IPv4 address the kernel deletes all IPv4 routes through it: without an
// anchor, to take over from kube-proxy, which binds addresses, would cut what
// the routes have taken over. A loopback address is local as it is, and of a
// scope in which it is nobody's source.
const anchor = "127.96.0.1/32"

// Ensure makes the device if there is none.
func (Dummy) Ensure(ctx context.Context) (changed bool, err error) {
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	h, err := openRoutes()
	if err != nil {
		return false, err
	}
	defer h.Close()
	link, err := h.find()
	if link == nil && errors.Is(err, ErrNoDevice) {
		changed = true
		link, err = h.make()
	}
	if link == nil {
		return false, err
	}
	for _, step := range []func(netlink.Link) (bool, error){h.withoutARP, h.up, h.anchored} {
		did, err := step(link)
		changed = changed || did
		if err != nil {
			return changed, fmt.Errorf("setting up the device %s: %w", DeviceName, reason(err))
		}
	}
	return changed, nil
}

func (h routes) withoutARP(link netlink.Link) (changed bool, err error) {
	if link.Attrs().RawFlags&unix.IFF_NOARP != 0 {
		return false, nil
	}
	return true, h.LinkSetARPOff(link)
}

func (h routes) up(link netlink.Link) (changed bool, err error) {
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return false, nil
	}
	return true, h.LinkSetUp(link)
}

func (h routes) anchored(link netlink.Link) (changed bool, err error) {
	addr, err := netlink.ParseAddr(anchor)
	if err != nil {
		return false, err
	}
	addr.Scope = unix.RT_SCOPE_HOST
	err = h.AddrAdd(link, addr)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return true, err
}

// routes is a connection to the part of the kernel that has links, addresses
// and routes.
type routes struct{ *netlink.Handle }

func openRoutes() (routes, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return routes{}, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return routes{h}, nil
}

// find returns the device; with ErrNoDevice, too, if it is only not as Ensure
// makes it.
func (h routes) find() (netlink.Link, error) {
	link, err := h.LinkByName(DeviceName)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil, ErrNoDevice
	case err != nil:
		return nil, fmt.Errorf("looking for %s: %w", DeviceName, err)
	case link.Type() != "dummy":
		return nil, fmt.Errorf("the device %s is of type %s, want dummy: rename or delete it", DeviceName, link.Type())
	}
	if flags := link.Attrs().RawFlags; flags&unix.IFF_UP == 0 || flags&unix.IFF_NOARP == 0 {
		return link, ErrNoDevice
	}
	return link, nil
}

// make makes the device, which is down. Where IPv6 is switched off it has no
// mode of making link-local addresses; List does not show such addresses.
func (h routes) make() (netlink.Link, error) {
	if _, err := h.add(DeviceName); err != nil {
		return nil, err
	}
	link, err := h.find()
	if link == nil {
		return nil, err
	}
	_ = h.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE)
	return link, nil
}

func (h routes) add(name string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	link := &netlink.Dummy{LinkAttrs: attrs}
	err := h.LinkAdd(link)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return link, nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, errNoDummy
	}
	return nil, fmt.Errorf("making the device %s: %w", name, reason(err))
}

// possible tells whether Ensure could have its device. Where there is none it
// makes another one, which has the kernel load the module, and deletes that.
func (Dummy) possible() error {
	h, err := openRoutes()
	if err != nil {
		return err
	}
	defer h.Close()
	if link, err := h.find(); link != nil {
		return nil
	} else if !errors.Is(err, ErrNoDevice) {
		return err
	}
	link, err := h.add("portway-probe")
	if err != nil {
		return err
	}
	return h.LinkDel(link)
}

// Remove deletes the device when neither family uses it.
func (Dummy) Remove(ctx context.Context) error {
	h, err := openRoutes()
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.find()
	if link == nil && errors.Is(err, ErrNoDevice) {
		return nil
	}
	if link == nil {
		return err
	}
	for _, f := range dataplane.Families() {
		list, _, err := h.list(ctx, link, f)
		if err != nil {
			return err
		}
		if len(list) > 0 {
			return fmt.Errorf("%w: %s", ErrInUse, list[0])
		}
	}
	if err := h.LinkDel(link); err != nil {
		return fmt.Errorf("deleting the device %s: %w", DeviceName, reason(err))
	}
	return nil
}

// List reads addresses and routes. While routes change, the kernel starts a
// dump of IPv6 routes again by itself, without a word, after as many as it has
// given: it repeats some or leaves some out (seen on 6.1). What is left out
// looks missing; to add it again changes nothing.
func (Dummy) List(ctx context.Context, f dataplane.Family) ([]Local, error) {
	h, err := openRoutes()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	link, missing := h.find()
	if link == nil {
		return nil, missing
	}
	list, anchored, err := h.list(ctx, link, f)
	if !anchored { // which no route shows as long as there is none
		missing = ErrNoDevice
	}
	return list, cmp.Or(err, missing)
}

// list also tells whether the device has its anchor, which is of IPv4 only.
func (h routes) list(ctx context.Context, link netlink.Link, f dataplane.Family) (list []Local, anchored bool, err error) {
	addresses, err := h.addresses(ctx, f)
	if err != nil {
		return nil, false, err
	}
	own := address{link.Attrs().Index, netip.MustParsePrefix(anchor)}
	anchored = f != dataplane.IPv4 || slices.Contains(addresses, own)
	for _, a := range addresses {
		if a.index == link.Attrs().Index && isGlobal(a.prefix) {
			list = append(list, Local{Prefix: a.prefix, Bound: true})
		}
	}
	found, err := h.locals(ctx, f)
	if err != nil {
		return nil, false, err
	}
	for _, r := range found {
		if r.index == link.Attrs().Index && r.protocol == RouteProtocol {
			list = append(list, r.Local)
		}
	}
	slices.SortFunc(list, Local.Compare)
	return slices.CompactFunc(list, func(a, b Local) bool { return a.Compare(b) == 0 }), anchored, nil
}

// isGlobal leaves out the anchor and what the kernel gives to every device.
func isGlobal(p netip.Prefix) bool {
	return !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsLoopback()
}

// address is an address of any device.
type address struct {
	index  int
	prefix netip.Prefix
}

// addresses returns the addresses of the node.
func (h routes) addresses(ctx context.Context, f dataplane.Family) ([]address, error) {
	var found []netlink.Addr
	err := retry(ctx, func() (err error) {
		found, err = h.AddrList(nil, rtFamily(f))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of the node: %w", err)
	}
	list := make([]address, 0, len(found))
	for _, a := range found {
		if p, ok := prefixOf(a.IPNet); ok {
			list = append(list, address{a.LinkIndex, p})
		}
	}
	return list, nil
}

// localRoute is a route of type local in table local through any device.
type localRoute struct {
	Local
	index    int
	protocol int
}

func (h routes) locals(ctx context.Context, f dataplane.Family) ([]localRoute, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	var list []localRoute
	err := retry(ctx, func() error {
		list = list[:0]
		return h.RouteListFilteredIter(rtFamily(f), filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			p, ok := prefixOf(r.Dst)
			if ok && r.Type == unix.RTN_LOCAL {
				source, _ := netip.AddrFromSlice(r.Src)
				list = append(list, localRoute{
					Local: Local{Prefix: p, Source: source.Unmap()}, index: r.LinkIndex, protocol: int(r.Protocol),
				})
			}
			return true
		})
	})
	if err != nil {
		return nil, fmt.Errorf("listing the local routes of the node: %w", err)
	}
	return list, nil
}

// retry repeats a read that a change has interrupted.
func retry(ctx context.Context, read func() error) error {
	for range interruptions {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return errInterrupted
}
