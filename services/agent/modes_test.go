package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

func TestFallbackOrder(t *testing.T) {
	for wish, want := range map[string]string{
		"":          "iptables userspace",
		"iptables":  "iptables userspace",
		"ipvs":      "ipvs iptables userspace",
		"userspace": "userspace iptables",
		"nftables":  "nftables iptables userspace",
	} {
		if have := strings.Join(fallbackOrder(wish), " "); have != want {
			t.Errorf("%q: %s, want %s", wish, have, want)
		}
	}
}

func TestModesHaveNamesThatOwnersKnow(t *testing.T) {
	names := ModeNames(Modes())
	for _, want := range []string{"iptables", "ipvs", "userspace", "nftables"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %s", want, names)
		}
	}
}

func TestCleanupTriesEverything(t *testing.T) {
	var tried []string
	mode := func(name string, err error) dataplane.Mode {
		return dataplane.Mode{Name: name, Cleanup: func(_ context.Context, f dataplane.Family) error {
			tried = append(tried, name+f.String())
			return err
		}}
	}
	err := Cleanup(t.Context(), []dataplane.Mode{mode("a", errors.New("chain X is left")), mode("b", nil)})
	if want := "aIPv4 aIPv6 bIPv4 bIPv6"; strings.Join(tried, " ") != want {
		t.Errorf("tried %s, want %s", tried, want)
	}
	for _, want := range []string{"a mode for IPv4: chain X is left", "a mode for IPv6: chain X is left"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if err := Cleanup(t.Context(), []dataplane.Mode{mode("c", nil)}); err != nil {
		t.Error(err)
	}
}
