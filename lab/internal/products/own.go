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

// Own builds a command of the lab's own module and returns the program. It is
// always built (Go's own cache makes that quick) and stored under the hash of
// what came out: its path stands for its content.
func (m Maker) Own(ctx context.Context, name string, note func(string)) (string, error) {
	work, err := m.workDir(name)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	built, err := m.program(ctx, m.Lab, name, work, note)
	if err != nil {
		return "", err
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

// program builds the command name of a module of this repository into the
// directory out.
func (m Maker) program(ctx context.Context, module, name, out string, note func(string)) (string, error) {
	built := filepath.Join(out, name)
	args := []string{"-buildvcs=false", "-ldflags", "-s -w", "-o", built, "./cmd/" + name}
	if err := m.compileIn(ctx, module, name, programs{}.verb(), args, note); err != nil {
		return "", fmt.Errorf("program %s: %w", name, err)
	}
	return built, nil
}

// workDir is a temporary directory beside the products, which are large.
func (m Maker) workDir(name string) (string, error) {
	if err := os.MkdirAll(m.Store.Dir, 0o755); err != nil {
		return "", fmt.Errorf("work directory for %s: %w", name, err)
	}
	dir, err := os.MkdirTemp(m.Store.Dir, "making-"+name+"-")
	if err != nil {
		return "", fmt.Errorf("work directory for %s: %w", name, err)
	}
	return dir, nil
}

// moduleDir is where the Go command keeps a module that the one in the directory
// from requires, downloaded if need be.
func (m Maker) moduleDir(ctx context.Context, from, module string) (string, error) {
	cmd := command.Cmd{Args: []string{"go", "mod", "download", "-json", module}, Dir: from, Env: goEnv()}
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
