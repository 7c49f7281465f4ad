// Package workspace finds the Go modules of this repository.
package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
)

// Prefix is what the path of every module here starts with; the rest of the
// path is the module's directory.
const Prefix = "github.com/portway/portway/"

// Module is one go.mod of the repository.
type Module struct {
	Dir    string // relative to the root, with slashes
	File   *modfile.File
	Source []byte // the bytes that File was parsed from
	// Member says whether go.work uses the module. A module inside another
	// module's directory stands alone: it exists to pin versions that the
	// workspace must not select for the product.
	Member bool
}

// Path is the module's import path.
func (m Module) Path() string { return m.File.Module.Mod.Path }

// Root is the nearest directory at or above dir that holds a go.work.
func Root(dir string) (string, error) {
	start, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := start; ; at = filepath.Dir(at) {
		_, err := os.Stat(filepath.Join(at, "go.work"))
		if err == nil {
			return at, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.work in %s or above it", start)
		}
	}
}

// Modules reads every go.mod below root, ordered by directory.
func Modules(root string) ([]Module, error) {
	var modules []Module
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && ignored(root, path) {
			return fs.SkipDir
		}
		if entry.IsDir() || entry.Name() != "go.mod" {
			return nil
		}
		module, err := read(root, path)
		if err != nil {
			return err
		}
		modules = append(modules, module)
		return nil
	})
	if err != nil {
		return nil, err
	}
	markMembers(modules)
	return modules, nil
}

// ignored tells the directories that hold no module of ours: hidden ones, test
// fixtures, and what make writes at the root.
func ignored(root, path string) bool {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" {
		return true
	}
	return filepath.Dir(path) == root && (name == "build" || name == "bin")
}

func read(root, path string) (Module, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return Module{}, err
	}
	file, err := modfile.Parse(path, source, nil)
	if err != nil {
		return Module{}, err
	}
	dir, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return Module{}, err
	}
	dir = filepath.ToSlash(dir)
	if file.Module == nil || file.Module.Mod.Path != Prefix+dir {
		return Module{}, fmt.Errorf("%s: its module must be called %s", path, Prefix+dir)
	}
	return Module{Dir: dir, File: file, Source: source}, nil
}

func markMembers(modules []Module) {
	for i := range modules {
		modules[i].Member = true
		for _, other := range modules {
			if strings.HasPrefix(modules[i].Dir, other.Dir+"/") {
				modules[i].Member = false
			}
		}
	}
}
