package kernel_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
)

// randomOp draws an op from so few objects that many ops meet.
func randomOp(t *rapid.T) kernel.Op {
	s := rapid.SampledFrom(samples).Draw(t, "family")
	op := kernel.Op{
		Verb: kernel.Verb(rapid.IntRange(int(kernel.AddServer), int(kernel.DeleteReal)).Draw(t, "verb")),
		Key: kernel.Key{
			Protocol: rapid.SampledFrom(protocols).Draw(t, "protocol"),
			Addr:     rapid.SampledFrom([]netip.Addr{s.vip, s.other}).Draw(t, "address"),
			Port:     80,
		},
	}
	switch op.Verb {
	case kernel.AddServer, kernel.SetServer:
		op.Server = kernel.Server{
			Scheduler: rapid.SampledFrom([]string{"rr", "wrr", "mh", "fancy", "none"}).Draw(t, "scheduler"),
			Persist:   time.Duration(rapid.IntRange(0, 3000).Draw(t, "persist")) * time.Millisecond,
			Flags:     rapid.SampledFrom([]kernel.Flags{0, kernel.HashPort, kernel.HashFallback | kernel.OnePacket}).Draw(t, "flags"),
		}
	case kernel.AddReal, kernel.SetReal, kernel.DeleteReal:
		reals := []netip.AddrPort{s.real, s.real2}
		for _, a := range s.notHosts {
			reals = append(reals, netip.AddrPortFrom(netip.MustParseAddr(a), 1))
		}
		op.Real = rapid.SampledFrom(reals).Draw(t, "real")
		op.Weight = rapid.IntRange(-1, 3).Draw(t, "weight")
	}
	return op
}

// TestMemoryIsTheKernel makes the same random changes to both: the same are
// refused, for the same reason, and the same is left.
func TestMemoryIsTheKernel(t *testing.T) {
	h := openHost(t)
	rapid.Check(t, func(t *rapid.T) {
		memory := kerneltest.NewServers()
		for _, ops := range rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(randomOp), 1, 40), 1, 4).Draw(t, "ops") {
			want, err := memory.Apply(t.Context(), ops)
			if err != nil {
				t.Fatal(err)
			}
			got, err := h.Apply(t.Context(), ops)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("refused:\n%v\nin memory:\n%v", got, want)
			}
			for _, f := range dataplane.Families() {
				sameServers(t, h, memory, f)
			}
		}
		empty(t, h)
	})
}

func sameServers(t *rapid.T, h, memory kernel.Servers, f dataplane.Family) {
	got, err := h.List(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	want, err := memory.List(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].Place = 0 // the kernel's order depends on where it keeps its own things
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got\n%v\nin memory\n%v", f, got, want)
	}
}

// empty deletes all virtual servers.
func empty(t *rapid.T, h kernel.Servers) {
	for _, f := range dataplane.Families() {
		list, err := h.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		var ops []kernel.Op
		for _, v := range list {
			ops = append(ops, kernel.Op{Verb: kernel.DeleteServer, Key: v.Key})
		}
		if refused, err := h.Apply(t.Context(), ops); err != nil || len(refused) > 0 {
			t.Fatal(refused, err)
		}
	}
}
