package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/portway/portway/modules/dataplane"
)

// Saved is what is left of a node's IPVS, device and sysctls: what programs
// printed there. It can be read, and not written.
type Saved struct {
	Servers SavedServers
	Device  SavedDevice
	Sysctls SavedSysctls
}

// SavedServers are Servers that were saved, sorted.
type SavedServers []VirtualServer

var _ Servers = SavedServers(nil)

// errSaved is why nothing can be written.
func errSaved(what string) error {
	return fmt.Errorf("writing %s that were saved: %w", what, errors.ErrUnsupported)
}

// List returns the virtual servers of a family.
func (s SavedServers) List(_ context.Context, f dataplane.Family) ([]VirtualServer, error) {
	var list []VirtualServer
	for _, v := range s {
		if v.Key.Family() == f {
			list = append(list, v)
		}
	}
	return list, nil
}

// Get returns one virtual server.
func (s SavedServers) Get(_ context.Context, k Key) (VirtualServer, bool, error) {
	i, ok := slices.BinarySearchFunc(s, k, func(v VirtualServer, k Key) int { return v.Key.Compare(k) })
	if !ok {
		return VirtualServer{}, false, nil
	}
	return s[i], true, nil
}

// Count takes over the numbers of connections from what was saved of
// /proc/net/ip_vs.
func (s SavedServers) Count(table io.Reader) error {
	text, err := io.ReadAll(table)
	if err != nil {
		return fmt.Errorf("reading the saved connections: %w", err)
	}
	counted := make(map[Key][]Real)
	for _, f := range dataplane.Families() {
		for k, reals := range parseTable(strings.NewReader(string(text)), f) {
			counted[k] = sortReals(reals)
		}
	}
	for i := range s {
		v := &s[i]
		now := VirtualServer{Reals: counted[v.Key]}
		for j := range v.Reals {
			if r, ok := now.Find(v.Reals[j].Addr); ok {
				v.Reals[j].Active, v.Reals[j].Inactive = r.Active, r.Inactive
			}
		}
	}
	return nil
}

// Apply fails.
func (SavedServers) Apply(context.Context, []Op) ([]Refusal, error) {
	return nil, errSaved("virtual servers")
}

// Timeouts fails.
func (SavedServers) Timeouts(context.Context) (Timeouts, error) {
	return Timeouts{}, fmt.Errorf("the timeouts were not saved: %w", errors.ErrUnsupported)
}

// SetTimeouts fails.
func (SavedServers) SetTimeouts(context.Context, Timeouts) error { return errSaved("timeouts") }

// Close does nothing.
func (SavedServers) Close() error { return nil }

// SavedDevice is a Device that was saved. The zero one was not there.
type SavedDevice struct {
	Exists bool
	Locals []Local // sorted
}

var _ Device = SavedDevice{}

// List returns what it made local in a family.
func (d SavedDevice) List(_ context.Context, f dataplane.Family) ([]Local, error) {
	if !d.Exists {
		return nil, ErrNoDevice
	}
	var list []Local
	for _, l := range d.Locals {
		if dataplane.FamilyOf(l.Prefix.Addr()) == f {
			list = append(list, l)
		}
	}
	return list, nil
}

// Ensure fails.
func (SavedDevice) Ensure(context.Context) (bool, error) { return false, errSaved("devices") }

// Apply fails.
func (SavedDevice) Apply(context.Context, []LocalOp) ([]LocalRefusal, error) {
	return nil, errSaved("addresses")
}

// Remove fails.
func (SavedDevice) Remove(context.Context) error { return errSaved("devices") }

// SavedSysctls are Sysctls that were saved.
type SavedSysctls map[string]string

var _ Sysctls = SavedSysctls(nil)

// Read returns the value.
func (s SavedSysctls) Read(name string) (string, error) {
	value, ok := s[name]
	if !ok {
		return "", fmt.Errorf("sysctl %s: %w", name, fs.ErrNotExist)
	}
	return value, nil
}

// Write fails.
func (SavedSysctls) Write(string, string) error { return errSaved("sysctls") }

// releaseName is the sysctl that says which kernel it is.
const releaseName = "kernel/osrelease"

// Settings are those that the mode wants of the kernel that the sysctls are of;
// none if that is not known.
func (s SavedSysctls) Settings(strictARP bool) ([]Setting, error) {
	text, ok := s[releaseName]
	if !ok {
		return nil, nil
	}
	release, err := ParseRelease(text)
	if err != nil {
		return nil, err
	}
	return Settings(SettingOptions{Release: release, StrictARP: strictARP}), nil
}

// WriteSysctls writes the sysctls that matter as the program sysctl does.
func WriteSysctls(w io.Writer, s Sysctls) error {
	names := []string{releaseName}
	for _, want := range Settings(SettingOptions{Release: Release{Major: 99}, StrictARP: true}) {
		names = append(names, want.Name)
	}
	out := bufio.NewWriter(w)
	for _, name := range names {
		value, err := s.Read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s = %s\n", strings.ReplaceAll(name, "/", "."), value)
	}
	return out.Flush()
}

// ReadSysctls reads what the program sysctl printed.
func ReadSysctls(r io.Reader) (SavedSysctls, error) {
	all := make(SavedSysctls)
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(text, "=")
		name = strings.ReplaceAll(strings.TrimSpace(name), ".", "/")
		if !ok || name == "" {
			return nil, fmt.Errorf("line %d of the saved sysctls: %q is no NAME = VALUE", n, text)
		}
		all[name] = strings.TrimSpace(value)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the saved sysctls: %w", err)
	}
	return all, nil
}
