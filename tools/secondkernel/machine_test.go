package main

import (
	"slices"
	"strings"
	"testing"
)

func TestChooseEnv(t *testing.T) {
	got := chooseEnv([]string{"PATH=/bin", "GOMAXPROCS=1", "SECRET=x", "PORTWAY_A=1", "MORE=2", "TMPDIR=/x"}, []string{"MORE"})
	if want := []string{"PATH=/bin", "GOMAXPROCS=1", "PORTWAY_A=1", "MORE=2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHiddenFolders(t *testing.T) {
	got := hiddenFolders([]string{"/tmp/a/b", "/usr/bin", "/tmp", "/run/x", "/tmp/a/b", "/tmpfiles/x"})
	if want := []string{"/tmp/a/b", "/run/x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMissingKernelNamesTheCure(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := findKernel(); err == nil || !strings.Contains(err.Error(), "apt-get install user-mode-linux") {
		t.Errorf("the error is %v", err)
	}
}
