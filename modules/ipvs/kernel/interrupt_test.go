package kernel_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/portway/portway/modules/ipvs/kernel"
)

// TestListWhileOthersChange: the kernel interrupts a dump of addresses or
// routes that change meanwhile. List asks again, and for IPv4 never misses what
// stays. What an IPv6 dump leaves out can be added again without harm.
func TestListWhileOthersChange(t *testing.T) {
	for _, s := range samples {
		t.Run(s.family.String(), func(t *testing.T) {
			b := board{openDummy(t, s), s}
			b.ensure(t, true)
			var ops []kernel.LocalOp
			a := b.vip
			for range 1000 { // more than fit into one datagram
				ops = append(ops, kernel.LocalOp{Local: kernel.Local{Prefix: netip.PrefixFrom(a, a.BitLen()), Source: b.nodeAddr()}})
				a = a.Next()
			}
			if refused, err := b.Apply(t.Context(), ops); err != nil || len(refused) > 0 {
				t.Fatal(refused, err)
			}
			churn, err := netlink.NewHandle()
			if err != nil {
				t.Fatal(err)
			}
			defer churn.Close()
			stop, stopped := make(chan struct{}), make(chan error)
			go func() { stopped <- comeAndGo(churn, s, stop) }()
			for range 10 {
				got, err := b.List(t.Context(), s.family)
				if err != nil {
					t.Fatal(err)
				}
				if len(got) > len(ops) || len(got) < len(ops) && s.vip.Is4() {
					t.Fatalf("got %d, want %d", len(got), len(ops))
				}
			}
			if refused, err := b.Apply(t.Context(), ops); err != nil || len(refused) > 0 {
				t.Error(refused, err)
			}
			close(stop)
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			want := make([]kernel.Local, len(ops))
			for i := range ops {
				want[i] = ops[i].Local
			}
			slices.SortFunc(want, kernel.Local.Compare)
			b.want(t, want...)
		})
	}
}

// comeAndGo adds an address to another device and deletes it, over and over.
func comeAndGo(h *netlink.Handle, s sample, stop <-chan struct{}) error {
	link, err := h.LinkByName("uplink")
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: netlink.NewIPNet(s.secondAddr().Next().AsSlice())}
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := h.AddrAdd(link, addr); err != nil {
			return err
		}
		if err := h.AddrDel(link, addr); err != nil {
			return err
		}
	}
}
