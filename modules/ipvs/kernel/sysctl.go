package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Sysctls reads and writes settings of the kernel by name, such as
// "net/ipv4/vs/conntrack". Those that the mode uses belong to the network
// namespace. fs.ErrNotExist: this kernel does not have it.
type Sysctls interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// ProcSys is the directory of the real ones, "/proc/sys" if empty. A thread
// sees there the settings of its own network namespace.
type ProcSys string

func (p ProcSys) path(name string) string {
	if p == "" {
		p = "/proc/sys"
	}
	return filepath.Join(string(p), filepath.FromSlash(name))
}

// Read returns the value without the blanks around it.
func (p ProcSys) Read(name string) (string, error) {
	text, err := os.ReadFile(p.path(name))
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", name, bare(err))
	}
	return strings.TrimSpace(string(text)), nil
}

// Write sets the value.
func (p ProcSys) Write(name, value string) error {
	file, err := os.OpenFile(p.path(name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", name, value, bare(err))
	}
	_, err = file.WriteString(value)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", name, value, bare(err))
	}
	return nil
}

// bare leaves out the path, which the name of the setting repeats.
func bare(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Setting is a setting that the mode wants.
type Setting struct {
	Name, Value string
	// Default is the kernel's own value, to which Restore returns; empty:
	// others may want the value, too, so it stays.
	Default string
	// Optional: not every kernel that runs the mode has it.
	Optional bool
	// Why is what goes wrong without it.
	Why string
}

// SettingChange is a setting that was not as wanted.
type SettingChange struct {
	Setting
	Old string
}

// String tells what was changed.
func (c SettingChange) String() string {
	return fmt.Sprintf("sysctl %s is %s, want %s", c.Name, c.Old, c.Value)
}

// Unset returns the settings that are not as wanted, and an error for each
// that cannot be read. It writes nothing.
func Unset(s Sysctls, want []Setting) (differ []SettingChange, errs []error) {
	for _, w := range want {
		old, err := s.Read(w.Name)
		switch {
		case w.Optional && errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, fmt.Errorf("%w; without it, %s", err, w.Why))
		case old != w.Value:
			differ = append(differ, SettingChange{w, old})
		}
	}
	return differ, errs
}

// Set makes the settings as wanted, and returns what it changed and an error,
// for a warning, for each that it could not read or write.
func Set(s Sysctls, want []Setting) (changed []SettingChange, errs []error) {
	differ, errs := Unset(s, want)
	for _, c := range differ {
		if err := s.Write(c.Name, c.Value); err != nil {
			errs = append(errs, fmt.Errorf("%w; without it, %s", err, c.Why))
			continue
		}
		changed = append(changed, c)
	}
	return changed, errs
}

// Restore returns the settings that have a Default to it, unless somebody
// has changed them since. It is for when no virtual server is left.
func Restore(s Sysctls, settings []Setting) error {
	var errs []error
	for _, w := range settings {
		if w.Default == "" || w.Default == w.Value {
			continue
		}
		have, err := s.Read(w.Name)
		if err == nil && have == w.Value {
			err = s.Write(w.Name, w.Default)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
