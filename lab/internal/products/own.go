package products

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/command"
)

// Own builds a command of the lab's own module and returns the program. Its
// path stands for its content, so what holds it can be cached by that.
func (m Maker) Own(ctx context.Context, name string, note func(string)) (string, error) {
	return m.Program(ctx, m.Lab, "./cmd/"+name, note)
}

// Program builds a static program from a module of this repository, which may
// change at any time: it is always built (Go's own cache makes that quick) and
// stored under the hash of what came out.
func (m Maker) Program(ctx context.Context, dir, pkg string, note func(string)) (string, error) {
	name := filepath.Base(pkg)
	if err := os.MkdirAll(m.Store.Dir, 0o755); err != nil {
		return "", fmt.Errorf("program %s: %w", name, err)
	}
	work, err := os.MkdirTemp(m.Store.Dir, "program-")
	if err != nil {
		return "", fmt.Errorf("program %s: %w", name, err)
	}
	defer os.RemoveAll(work)
	built := filepath.Join(work, name)
	err = m.compileIn(ctx, dir, name, []string{"-buildvcs=false", "-ldflags", "-s -w", "-o", built, pkg}, note)
	if err != nil {
		return "", fmt.Errorf("program %s: %w", name, err)
	}
	key := new(cache.Key)
	if err := key.AddFile("program", built); err != nil {
		return "", err
	}
	stored, err := m.Store.Get(ctx, name, key, func(out string) error {
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
		return os.Rename(built, filepath.Join(out, name))
	})
	return filepath.Join(stored, name), err
}

// moduleDir is where the Go command keeps a module that the lab requires,
// downloaded if need be.
func (m Maker) moduleDir(ctx context.Context, module string) (string, error) {
	cmd := command.Cmd{Args: []string{"go", "mod", "download", "-json", module}, Dir: m.Lab, Env: goEnv()}
	out, err := m.Run.Run(ctx, cmd)
	if err != nil {
		return "", fmt.Errorf("module %s: %w", module, err)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return "", fmt.Errorf("module %s: %w", module, err)
	}
	return found.Dir, nil
}
