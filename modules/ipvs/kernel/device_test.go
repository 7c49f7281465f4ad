package kernel_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
)

// nodeAddr is an address that another device has.
func (s sample) nodeAddr() netip.Addr {
	if s.vip.Is4() {
		return netip.MustParseAddr("192.0.2.1")
	}
	return netip.MustParseAddr("2001:db8::1")
}

func (s sample) secondAddr() netip.Addr { return s.nodeAddr().Next() }

// board is what a behaviour of devices is tried on.
type board struct {
	device
	sample
}

// device can also be found as kube-proxy leaves it.
type device interface {
	kernel.Device
	BindDown(ctx context.Context, addrs ...netip.Addr) error
}

// dummy is the kernel's.
type dummy struct{ kernel.Dummy }

func (dummy) BindDown(_ context.Context, addrs ...netip.Addr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = kernel.DeviceName
	link := &netlink.Dummy{LinkAttrs: attrs}
	err := netlink.LinkAdd(link)
	for _, a := range addrs {
		err = errors.Join(err, netlink.AddrAdd(link, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}))
	}
	return err
}

func (s sample) bound() kernel.Local {
	return kernel.Local{Prefix: netip.PrefixFrom(s.vip, s.vip.BitLen()), Bound: true}
}

func (s sample) route(source netip.Addr) kernel.Local {
	return kernel.Local{Prefix: netip.PrefixFrom(s.vip, s.vip.BitLen()), Source: source}
}

func (s sample) rangeRoute() kernel.Local {
	if s.vip.Is4() {
		return kernel.Local{Prefix: netip.MustParsePrefix("100.64.8.0/24"), Source: s.nodeAddr()}
	}
	return kernel.Local{Prefix: netip.MustParsePrefix("fd00:64::/112"), Source: s.nodeAddr()}
}

func (b board) ensure(t *testing.T, changed bool) {
	t.Helper()
	if got, err := b.Ensure(t.Context()); err != nil || got != changed {
		t.Fatalf("Ensure: got %v, %v, want %v", got, err, changed)
	}
}

func (b board) add(t *testing.T, want error, l kernel.Local) {
	b.change(t, want, kernel.LocalOp{Local: l})
}

func (b board) remove(t *testing.T, l kernel.Local) {
	b.change(t, nil, kernel.LocalOp{Local: l, Delete: true})
}

func (b board) change(t *testing.T, want error, op kernel.LocalOp) {
	t.Helper()
	refused, err := b.Apply(t.Context(), []kernel.LocalOp{op})
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(refused) == 0 && want != nil:
		t.Errorf("%s: not refused, want %v", op, want)
	case len(refused) > 0 && !errors.Is(&refused[0], want):
		t.Errorf("%v, want %v", &refused[0], want)
	}
}

func (b board) want(t *testing.T, want ...kernel.Local) {
	t.Helper()
	got, err := b.List(t.Context(), b.family)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v\nwant %v", got, err, want)
	}
}

// onDevices are what every kernel.Device does, of the kernel and in memory.
var onDevices = []struct {
	name string
	test func(t *testing.T, b board)
}{
	{"no device", func(t *testing.T, b board) {
		if got, err := b.List(t.Context(), b.family); !errors.Is(err, kernel.ErrNoDevice) {
			t.Errorf("List: got %v, %v", got, err)
		}
		if got, err := b.Apply(t.Context(), []kernel.LocalOp{{Local: b.bound()}}); !errors.Is(err, kernel.ErrNoDevice) {
			t.Errorf("Apply: got %v, %v", got, err)
		}
		if err := b.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}},
	{"found down", func(t *testing.T, b board) {
		other := b.vip.Next()
		if err := b.BindDown(t.Context(), b.vip, other); err != nil {
			t.Fatal(err)
		}
		second := kernel.Local{Prefix: netip.PrefixFrom(other, other.BitLen()), Bound: true}
		if got, err := b.List(t.Context(), b.family); !slices.Equal(got, []kernel.Local{b.bound(), second}) || !errors.Is(err, kernel.ErrNoDevice) {
			t.Errorf("List: got %v, %v", got, err)
		}
		if got, err := b.Apply(t.Context(), []kernel.LocalOp{{Local: b.route(netip.Addr{})}}); !errors.Is(err, kernel.ErrNoDevice) {
			t.Errorf("Apply: got %v, %v", got, err)
		}
		b.remove(t, second)
		if err := b.Remove(t.Context()); !errors.Is(err, kernel.ErrInUse) {
			t.Errorf("Remove: got %v", err)
		}
		b.ensure(t, true)
		b.want(t, b.bound())
		b.add(t, nil, b.route(netip.Addr{}))
		b.remove(t, b.bound())
		b.want(t, b.route(netip.Addr{}))
	}},
	{"ensure twice", func(t *testing.T, b board) {
		b.ensure(t, true)
		b.ensure(t, false)
		b.want(t)
	}},
	{"bound address", func(t *testing.T, b board) {
		b.ensure(t, true)
		b.add(t, nil, b.bound())
		b.add(t, nil, b.bound())
		b.want(t, b.bound())
		b.remove(t, b.bound())
		b.want(t)
		b.remove(t, b.bound())
	}},
	{"route", func(t *testing.T, b board) {
		b.ensure(t, true)
		b.add(t, nil, b.route(netip.Addr{}))
		b.add(t, nil, b.route(netip.Addr{}))
		b.want(t, b.route(netip.Addr{}))
		b.remove(t, b.route(netip.Addr{}))
		b.want(t)
		b.remove(t, b.route(netip.Addr{}))
	}},
	{"another source", func(t *testing.T, b board) {
		b.ensure(t, true)
		for _, source := range []netip.Addr{{}, b.nodeAddr(), b.nodeAddr(), b.secondAddr(), {}} {
			b.add(t, nil, b.route(source))
			b.want(t, b.route(source))
		}
	}},
	{"deleted whatever its source", func(t *testing.T, b board) {
		b.ensure(t, true)
		b.add(t, nil, b.route(b.nodeAddr()))
		b.remove(t, b.route(netip.Addr{}))
		b.want(t)
		b.add(t, nil, b.route(b.nodeAddr()))
		b.remove(t, b.route(b.secondAddr()))
		b.want(t)
	}},
	{"source that the node has not", func(t *testing.T, b board) {
		b.ensure(t, true)
		b.add(t, kernel.ErrSource, b.route(b.other))
		b.want(t)
	}},
	{"range", func(t *testing.T, b board) {
		b.ensure(t, true)
		b.add(t, nil, b.rangeRoute())
		b.add(t, nil, b.route(b.nodeAddr()))
		if b.vip.Is4() {
			b.want(t, b.route(b.nodeAddr()), b.rangeRoute())
		} else {
			b.want(t, b.rangeRoute(), b.route(b.nodeAddr()))
		}
		b.remove(t, b.rangeRoute())
		b.want(t, b.route(b.nodeAddr()))
	}},
	{"from address to route and back", func(t *testing.T, b board) {
		b.ensure(t, true)
		b.add(t, nil, b.bound())
		b.add(t, nil, b.route(b.nodeAddr()))
		b.want(t, b.bound(), b.route(b.nodeAddr()))
		b.remove(t, b.bound())
		b.want(t, b.route(b.nodeAddr()))
		b.add(t, nil, b.bound())
		b.remove(t, b.route(b.nodeAddr()))
		b.want(t, b.bound())
	}},
	{"address of another device", func(t *testing.T, b board) {
		b.ensure(t, true)
		node := netip.PrefixFrom(b.nodeAddr(), b.nodeAddr().BitLen())
		b.add(t, kernel.ErrHeld, kernel.Local{Prefix: node, Bound: true})
		b.add(t, kernel.ErrHeld, kernel.Local{Prefix: node})
		b.add(t, kernel.ErrHeld, kernel.Local{Prefix: node, Source: b.secondAddr()})
		b.remove(t, kernel.Local{Prefix: node, Bound: true})
		b.remove(t, kernel.Local{Prefix: node})
		b.want(t)
	}},
	{"refusals stop nothing", func(t *testing.T, b board) {
		b.ensure(t, true)
		node := netip.PrefixFrom(b.nodeAddr(), b.nodeAddr().BitLen())
		refused, err := b.Apply(t.Context(), []kernel.LocalOp{
			{Local: kernel.Local{Prefix: node}}, {Local: b.route(b.nodeAddr())}, {Local: b.bound(), Delete: true},
		})
		if err != nil || len(refused) != 1 || !errors.Is(&refused[0], kernel.ErrHeld) {
			t.Errorf("got %v, %v", refused, err)
		}
		b.want(t, b.route(b.nodeAddr()))
	}},
	{"remove", func(t *testing.T, b board) {
		for _, l := range []kernel.Local{b.bound(), b.route(b.nodeAddr()), b.rangeRoute()} {
			b.ensure(t, true)
			b.add(t, nil, l)
			if err := b.Remove(t.Context()); !errors.Is(err, kernel.ErrInUse) {
				t.Errorf("with %s: got %v", l, err)
			}
			b.want(t, l)
			b.remove(t, l)
			if err := b.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := b.List(t.Context(), b.family); !errors.Is(err, kernel.ErrNoDevice) {
				t.Errorf("after Remove: got %v", err)
			}
		}
	}},
}

func tryDevices(t *testing.T, open func(t *testing.T, s sample) device) {
	for _, s := range samples {
		for _, c := range onDevices {
			t.Run(s.family.String()+"/"+c.name, func(t *testing.T) {
				c.test(t, board{open(t, s), s})
			})
		}
	}
}

func TestDeviceInMemory(t *testing.T) {
	tryDevices(t, func(_ *testing.T, s sample) device {
		return kerneltest.NewDevice(s.nodeAddr(), s.secondAddr())
	})
}

// openDummy is the device of a new namespace, in which another device has the
// addresses of the node.
func openDummy(t testing.TB, s sample) device {
	t.Helper()
	enterNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink"
	link := &netlink.Dummy{LinkAttrs: attrs}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("%v; or run the tests with -exec build/tools/secondkernel", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{s.nodeAddr(), s.secondAddr()} {
		addr := &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
	}
	return dummy{}
}

func TestDeviceOfTheKernel(t *testing.T) {
	tryDevices(t, func(t *testing.T, s sample) device { return openDummy(t, s) })
}

// Without its own address the device would lose all IPv4 routes together with the
// last address that kube-proxy bound; that it is gone shows also when there is none.
func TestDeviceWithoutItsOwnAddressIsNotWhole(t *testing.T) {
	d := openDummy(t, samples[0])
	if _, err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list, err := d.List(t.Context(), dataplane.IPv4); err != nil || len(list) > 0 {
		t.Fatalf("made: %v, %v", list, err)
	}
	link, err := netlink.LinkByName(kernel.DeviceName)
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil || len(addresses) != 1 {
		t.Fatalf("its addresses: %v, %v", addresses, err)
	}
	if err := netlink.AddrDel(link, &addresses[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(t.Context(), dataplane.IPv4); !errors.Is(err, kernel.ErrNoDevice) {
		t.Errorf("without its address: %v", err)
	}
	if changed, err := d.Ensure(t.Context()); err != nil || !changed {
		t.Errorf("made again: %t, %v", changed, err)
	}
	if _, err := d.List(t.Context(), dataplane.IPv4); err != nil {
		t.Errorf("whole again: %v", err)
	}
}
