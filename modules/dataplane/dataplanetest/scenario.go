package dataplanetest

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

//go:embed scenarios/*.txtar
var scenarios embed.FS

// Scenario is a story of a few states, each with the probes that hold in it.
type Scenario struct {
	// Story says what it shows.
	Story string
	Acts  []Act
}

// Act is one state and its probes.
type Act struct {
	State  State
	Probes []Probe
}

// ParseScenario reads a txtar archive whose files are called "state" and
// "probes", in turns.
func ParseScenario(text []byte) (Scenario, error) {
	archive := txtar.Parse(text)
	s := Scenario{Story: strings.TrimSpace(string(archive.Comment))}
	for i, f := range archive.Files {
		if want := []string{"state", "probes"}[i%2]; f.Name != want {
			return s, fmt.Errorf("file %d is called %q, want %q", i+1, f.Name, want)
		}
		if f.Name == "state" {
			state, err := ParseState(string(f.Data))
			if err != nil {
				return s, fmt.Errorf("state of act %d: %w", len(s.Acts)+1, err)
			}
			s.Acts = append(s.Acts, Act{State: state})
			continue
		}
		act := &s.Acts[len(s.Acts)-1]
		for line := range strings.Lines(string(f.Data)) {
			if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
				continue
			}
			p, err := ParseProbe(line)
			if err != nil {
				return s, fmt.Errorf("probe %q: %w", line, err)
			}
			act.Probes = append(act.Probes, p)
		}
	}
	return s, nil
}

// RunScenarios plays the scenarios that every mode must pass, and those of more.
func RunScenarios(t *testing.T, cfg Config, more ...fs.FS) {
	for _, from := range append([]fs.FS{scenarios}, more...) {
		err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || path.Ext(name) != ".txtar" {
				return err
			}
			text, err := fs.ReadFile(from, name)
			if err != nil {
				return err
			}
			t.Run(strings.TrimSuffix(path.Base(name), ".txtar"), func(t *testing.T) {
				t.Parallel()
				s, err := ParseScenario(text)
				if err != nil {
					t.Fatal(err)
				}
				Play(t, cfg, s)
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
