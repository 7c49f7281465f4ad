package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs"
)

func TestFallbackOrder(t *testing.T) {
	open := func(context.Context, dataplane.Family) (dataplane.Plane, error) { return nil, nil }
	all := []dataplane.Mode{{Name: "iptables", Open: open}, {Name: "ipvs", Open: open}, {Name: "userspace", Open: open}, {Name: "nftables", Open: open}}
	today := []dataplane.Mode{{Name: "iptables", Open: open}, unbuilt("ipvs"), unbuilt("userspace"), unbuilt("nftables")}
	for _, test := range []struct{ wish, all, today string }{
		{"", "iptables userspace", "iptables"},
		{"iptables", "iptables userspace", "iptables"},
		{"ipvs", "ipvs iptables userspace", "ipvs iptables"},
		{"userspace", "userspace iptables", "userspace iptables"},
		{"nftables", "nftables iptables userspace", "nftables iptables"},
	} {
		if have := strings.Join(fallbackOrder(all, test.wish), " "); have != test.all {
			t.Errorf("%q: %s, want %s", test.wish, have, test.all)
		}
		if have := strings.Join(fallbackOrder(today, test.wish), " "); have != test.today {
			t.Errorf("%q, with modes that are not built: %s, want %s", test.wish, have, test.today)
		}
	}
}

func TestModesHaveNamesThatOwnersKnow(t *testing.T) {
	names := ModeNames(Modes(nil, ipvs.Options{}))
	for _, want := range []string{"iptables", "ipvs", "userspace", "nftables"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %s", want, names)
		}
	}
}

// Proves S9.5.
func TestCleanupTriesEverything(t *testing.T) {
	var tried []string
	mode := func(name string, err error) dataplane.Mode {
		return dataplane.Mode{Name: name, Cleanup: func(_ context.Context, f dataplane.Family) error {
			tried = append(tried, name+f.String())
			if err != nil {
				return fmt.Errorf("clean up %s for %s: %w", name, f, err)
			}
			return nil
		}}
	}
	err := Cleanup(t.Context(), []dataplane.Mode{mode("a", errors.New("chain X is left")), mode("b", nil)}, dataplane.Families())
	if want := "aIPv4 aIPv6 bIPv4 bIPv6"; strings.Join(tried, " ") != want {
		t.Errorf("tried %s, want %s", tried, want)
	}
	for _, want := range []string{"a for IPv4: chain X is left", "a for IPv6: chain X is left"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if err := Cleanup(t.Context(), []dataplane.Mode{mode("c", nil)}, dataplane.Families()); err != nil {
		t.Error(err)
	}
}

// NodePorts on loopback are there by default in the modes in which kube-proxy had
// them; elsewhere nodePortAddresses has to name it.
// Proves S5.5.
func TestLoopbackByDefault(t *testing.T) {
	for mode, want := range map[string]bool{"iptables": true, "userspace": true, "ipvs": false, "nftables": false} {
		if loopbackByDefault(mode) != want {
			t.Errorf("%s: %t, want %t", mode, !want, want)
		}
	}
}
