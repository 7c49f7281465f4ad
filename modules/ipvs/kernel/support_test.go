package kernel_test

import (
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
)

// TestSupport: all schedulers by name, in both families.
func TestSupport(t *testing.T) {
	for _, f := range dataplane.Families() {
		if err := kernel.Support(t.Context(), f, kerneltest.Schedulers()...); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestSupportNamesTheCure(t *testing.T) {
	err := kernel.Support(t.Context(), dataplane.IPv4, "rr", "fancy", "fancier")
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{`no IPVS scheduler "fancy"`, "modprobe ip_vs_fancy", `no IPVS scheduler "fancier"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %q, without %q", err, part)
		}
	}
}

// TestSupportLeavesNothing: what Support tries it tries elsewhere.
func TestSupportLeavesNothing(t *testing.T) {
	h := openHost(t)
	if err := kernel.Support(t.Context(), dataplane.IPv4, "rr"); err != nil {
		t.Fatal(err)
	}
	if list, err := h.List(t.Context(), dataplane.IPv4); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	if list, err := (kernel.Dummy{}).List(t.Context(), dataplane.IPv4); err == nil {
		t.Errorf("a device, with %v", list)
	}
}
