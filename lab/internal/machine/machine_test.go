package machine

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/portway/portway/lab/internal/command"
)

func TestMissing(t *testing.T) {
	absent := errors.New("absent")
	look := func(have ...string) func(string) (string, error) {
		return func(name string) (string, error) {
			if slices.Contains(have, name) {
				return "/usr/bin/" + name, nil
			}
			return "", absent
		}
	}
	stat := func(string) (fs.FileInfo, error) { return nil, nil }
	noFile := func(string) (fs.FileInfo, error) { return nil, absent }
	needs := append(offlineNeeds(), daemonNeeds()...)
	all := []string{"docker", "dockerd", "ip", "iptables", "mmdebstrap", "nft", "runc"}
	if got := missing(needs, look(all...), stat); len(got) != 0 {
		t.Errorf("with everything there, missing %v", got)
	}
	want := []string{"debian-archive-keyring", "docker.io", "iproute2", "iptables", "mmdebstrap", "nftables", "runc"}
	if got := missing(needs, look(), noFile); !slices.Equal(got, want) {
		t.Errorf("with nothing there, missing %v, want %v", got, want)
	}
	for guest, want := range map[bool]bool{false: false, true: true} {
		t.Setenv("PATH", "")
		if got := slices.Contains(Missing(false, guest), "user-mode-linux"); got != want {
			t.Errorf("with guest %v, user-mode-linux missing: %v", guest, got)
		}
	}
	if got := missing(needs, look("docker", "ip", "iptables", "mmdebstrap", "nft", "runc"), stat); !slices.Equal(got, []string{"docker.io"}) {
		t.Errorf("with Docker's client alone, missing %v", got)
	}
}

type noCommands struct{ t *testing.T }

func (n noCommands) Run(_ context.Context, c command.Cmd) (string, error) {
	n.t.Errorf("ran %s", c)
	return "", nil
}

func TestInstallOfNothingRunsNothing(t *testing.T) {
	if err := Install(t.Context(), noCommands{t}, nil, func(string) {}); err != nil {
		t.Error(err)
	}
}

func TestLastProcessor(t *testing.T) {
	for list, want := range map[string]string{"0-3": "3", "0": "0", "0,2": "2", "0-3,8-11": "11", "0-1,7": "7", "": "", "x": ""} {
		got, err := lastProcessor("Name:\tlab\nCpus_allowed_list:\t" + list + "\nMems_allowed:\t1\n")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("of %q: %q, %v", list, got, err)
		}
	}
	if n, err := LastProcessor(); err != nil || n == "" {
		t.Errorf("of this machine: %q, %v", n, err)
	}
}
