package dataplane

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	mode := func(name string, broken Family) Mode {
		return Mode{Name: name, Probe: func(_ context.Context, f Family) error {
			if f == broken {
				return errors.New("the kernel has no such thing")
			}
			return nil
		}}
	}
	modes := []Mode{mode("iptables", 0), mode("userspace", IPv6), mode("ipvs", IPv4)}
	for _, tt := range []struct {
		order    string
		families []Family
		want     string
		refused  int
		err      string
	}{
		{"iptables userspace", Families(), "iptables", 0, ""},
		{"ipvs iptables userspace", Families(), "iptables", 1, ""},
		{"ipvs userspace", []Family{IPv4}, "userspace", 1, ""},
		{"ipvs", []Family{IPv6}, "ipvs", 0, ""},
		{"ipvs userspace", Families(), "", 2, "ipvs mode for IPv4: the kernel has no such thing"},
		{"iptables ipsv", Families(), "", 0, `unknown proxy mode "ipsv"`},
	} {
		c, err := Choose(t.Context(), modes, strings.Fields(tt.order), tt.families)
		if c.Mode.Name != tt.want || len(c.Refused) != tt.refused || c.FellBack() != (tt.refused > 0) {
			t.Errorf("%s: chose %q after %v", tt.order, c.Mode.Name, c.Refused)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: error %v, want %q", tt.order, err, tt.err)
		}
	}
	m := Mode{Lacks: []Capability{KeepSource}}
	if m.Has(KeepSource) || !m.Has(KeepFlows) {
		t.Error("Has does not follow Lacks")
	}
}
