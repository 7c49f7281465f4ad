package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/portway/portway/tools/workspace"
)

// siblingVersion is required of every sibling: the replace line beside it, not
// the version, says where the code is.
const siblingVersion = "v0.0.0"

// edit is a file whose content differs from what the workspace calls for.
type edit struct {
	path string // relative to the root
	want []byte
}

// plan lists the files to write so that every go.mod replaces exactly the
// siblings that it needs, directly or through another, and go.work uses exactly
// the members.
func plan(root string) ([]edit, error) {
	modules, err := workspace.Modules(root)
	if err != nil {
		return nil, err
	}
	byPath := make(map[string]workspace.Module, len(modules))
	for _, module := range modules {
		byPath[module.Path()] = module
	}
	var edits []edit
	for _, module := range modules {
		want, err := syncModule(module, byPath)
		if err != nil {
			return nil, fmt.Errorf("%s/go.mod: %w", module.Dir, err)
		}
		if !bytes.Equal(want, module.Source) {
			edits = append(edits, edit{path: module.Dir + "/go.mod", want: want})
		}
	}
	have, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return nil, err
	}
	want, err := syncWork(have, modules)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(want, have) {
		edits = append(edits, edit{path: "go.work", want: want})
	}
	return edits, nil
}

// syncModule is the module's go.mod with the right versions and replace lines
// for its siblings. Go reads the replace lines of the main module only, so each
// module carries those of its siblings' siblings too.
func syncModule(module workspace.Module, byPath map[string]workspace.Module) ([]byte, error) {
	file := module.File
	for _, require := range file.Require {
		if isSibling(require.Mod.Path) && require.Mod.Version != siblingVersion {
			if err := file.AddRequire(require.Mod.Path, siblingVersion); err != nil {
				return nil, err
			}
		}
	}
	wanted := make(map[string]bool)
	if err := reach(file, byPath, wanted); err != nil {
		return nil, err
	}
	delete(wanted, module.Path())
	for _, replace := range slices.Clone(file.Replace) {
		if isSibling(replace.Old.Path) && !wanted[replace.Old.Path] {
			if err := file.DropReplace(replace.Old.Path, replace.Old.Version); err != nil {
				return nil, err
			}
		}
	}
	for _, sibling := range sortedKeys(wanted) {
		if err := file.AddReplace(sibling, "", relative(module.Dir, byPath[sibling].Dir), ""); err != nil {
			return nil, err
		}
	}
	file.Cleanup()
	file.SortBlocks()
	return file.Format()
}

// reach adds to found every sibling that file requires, and theirs.
func reach(file *modfile.File, byPath map[string]workspace.Module, found map[string]bool) error {
	for _, require := range file.Require {
		sibling := require.Mod.Path
		if !isSibling(sibling) || found[sibling] {
			continue
		}
		module, ok := byPath[sibling]
		if !ok {
			return fmt.Errorf("requires %s, which is not in this repository", sibling)
		}
		found[sibling] = true
		if err := reach(module.File, byPath, found); err != nil {
			return err
		}
	}
	return nil
}

func syncWork(have []byte, modules []workspace.Module) ([]byte, error) {
	work, err := modfile.ParseWork("go.work", have, nil)
	if err != nil {
		return nil, err
	}
	wanted := make(map[string]bool)
	for _, module := range modules {
		if module.Member {
			wanted["./"+module.Dir] = true
		}
	}
	for _, use := range slices.Clone(work.Use) {
		if wanted[use.Path] {
			delete(wanted, use.Path)
			continue
		}
		if err := work.DropUse(use.Path); err != nil {
			return nil, err
		}
	}
	for _, dir := range sortedKeys(wanted) {
		if err := work.AddUse(dir, ""); err != nil {
			return nil, err
		}
	}
	work.SortBlocks()
	work.Cleanup()
	return modfile.Format(work.Syntax), nil
}

func isSibling(modulePath string) bool { return strings.HasPrefix(modulePath, workspace.Prefix) }

// relative is the path from one directory of the repository to another, as a
// replace line wants it. A sibling is never below the module, so the path always
// starts with "..", unless the module is nested in the sibling.
func relative(from, to string) string {
	rel, err := filepath.Rel(filepath.FromSlash(from), filepath.FromSlash(to))
	if err != nil { // both are relative to the root, so this cannot be
		panic(err)
	}
	rel = path.Clean(filepath.ToSlash(rel))
	if !strings.HasPrefix(rel, "..") {
		rel = "./" + rel
	}
	return rel
}

func sortedKeys(set map[string]bool) []string {
	keys := make([]string, 0, len(set))
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
