package kernel_test

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
)

func TestParseRelease(t *testing.T) {
	for text, want := range map[string]kernel.Release{
		"6.1.176":         {Major: 6, Minor: 1},
		"5.10.0-21-amd64": {Major: 5, Minor: 10},
		"4.19":            {Major: 4, Minor: 19},
		"3.10-rc1":        {Major: 3, Minor: 10},
		"6.18.0+":         {Major: 6, Minor: 18},
	} {
		if got, err := kernel.ParseRelease(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "6", "six.one", "6.", ".1", "6.x"} {
		if got, err := kernel.ParseRelease(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

// TestConnReuseMode is kubernetes#81775 and #93297.
func TestConnReuseMode(t *testing.T) {
	for text, want := range map[string]string{
		"3.10": "", "4.0": "", "4.1": "0", "4.19": "0", "5.8": "0", "5.9": "1", "5.10": "1", "6.1": "1",
	} {
		release, err := kernel.ParseRelease(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range kernel.Settings(kernel.SettingOptions{Release: release}) {
			if s.Name == "net/ipv4/vs/conn_reuse_mode" {
				got = s.Value
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func settings(strict bool) []kernel.Setting {
	return kernel.Settings(kernel.SettingOptions{Release: kernel.Release{Major: 5, Minor: 4}, StrictARP: strict})
}

func TestSet(t *testing.T) {
	s := kerneltest.NewSysctls()
	changed, errs := kernel.Set(s, settings(true))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var lines []string
	for _, c := range changed {
		lines = append(lines, c.String())
	}
	want := []string{
		"sysctl net/ipv4/vs/conntrack is 0, want 1",
		"sysctl net/ipv4/vs/expire_nodest_conn is 0, want 1",
		"sysctl net/ipv4/vs/expire_quiescent_template is 0, want 1",
		"sysctl net/ipv4/vs/conn_reuse_mode is 1, want 0",
		"sysctl net/ipv4/conf/all/arp_ignore is 0, want 1",
		"sysctl net/ipv4/conf/all/arp_announce is 0, want 2",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q\nwant %q", lines, want)
	}
	if changed, errs := kernel.Set(s, settings(true)); len(changed)+len(errs) > 0 {
		t.Errorf("again: got %v, %v", changed, errs)
	}
}

func TestSetWithoutOne(t *testing.T) {
	s := kerneltest.NewSysctls()
	delete(s, "net/ipv4/vs/conntrack")
	changed, errs := kernel.Set(s, settings(false))
	if len(errs) != 1 || !errors.Is(errs[0], fs.ErrNotExist) ||
		!strings.Contains(errs[0].Error(), "sysctl net/ipv4/vs/conntrack: file does not exist; without it, flows") {
		t.Errorf("got %v", errs)
	}
	if len(changed) != 3 {
		t.Errorf("the others: got %v", changed)
	}
}

func TestRestore(t *testing.T) {
	s := kerneltest.NewSysctls()
	before := maps.Clone(s)
	if _, errs := kernel.Set(s, settings(true)); len(errs) > 0 {
		t.Fatal(errs)
	}
	s["net/ipv4/vs/expire_nodest_conn"] = "2" // by somebody else
	if err := kernel.Restore(s, settings(true)); err != nil {
		t.Fatal(err)
	}
	before["net/ipv4/vs/expire_nodest_conn"] = "2"
	before["net/ipv4/conf/all/arp_ignore"] = "1" // others may rely on it by now
	before["net/ipv4/conf/all/arp_announce"] = "2"
	if !maps.Equal(s, before) {
		t.Errorf("got %v, want %v", s, before)
	}
}

// TestSysctlsOfAnotherNamespace: what is set in one is not set in another.
func TestSysctlsOfAnotherNamespace(t *testing.T) {
	want := kernel.Settings(kernel.SettingOptions{Release: kernel.Release{Major: 6, Minor: 1}, StrictARP: true})
	for _, name := range []string{"one", "another"} {
		t.Run(name, func(t *testing.T) {
			openHost(t)
			if changed, errs := kernel.Set(kernel.ProcSys(""), want); len(errs) > 0 || len(changed) != 5 {
				t.Errorf("got %v, %v", changed, errs)
			}
		})
	}
}

// TestSysctlsOfTheKernel is the same on the kernel.
func TestSysctlsOfTheKernel(t *testing.T) {
	openHost(t)
	release, err := kernel.Running()
	if err != nil {
		t.Fatal(err)
	}
	want := kernel.Settings(kernel.SettingOptions{Release: release, StrictARP: true})
	changed, errs := kernel.Set(kernel.ProcSys(""), want)
	if len(errs) > 0 || len(changed) < 5 {
		t.Fatalf("got %v, %v", changed, errs)
	}
	if differ, errs := kernel.Unset(kernel.ProcSys(""), want); len(differ)+len(errs) > 0 {
		t.Errorf("afterwards: %v, %v", differ, errs)
	}
	if err := kernel.Restore(kernel.ProcSys(""), want); err != nil {
		t.Fatal(err)
	}
	differ, errs := kernel.Unset(kernel.ProcSys(""), want)
	if len(errs) > 0 || len(differ) != 3 {
		t.Errorf("restored: %v, %v", differ, errs)
	}
	if err := kernel.ProcSys("").Write("net/ipv4/vs/no_such", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such setting: got %v", err)
	}
	if err := kernel.ProcSys("").Write("net/ipv4/vs/conntrack", "many"); err == nil || !strings.Contains(err.Error(), "vs/conntrack=many") {
		t.Errorf("a bad value: got %v", err)
	}
}
