package conventions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"regexp"
	"strings"

	"github.com/portway/portway/tools/workspace"
)

// MaxLines is the length below which a Go file stays, so that it has one subject.
const MaxLines = 400

// registryHosts matches the host names of public container registries. Images
// come from kind, from Debian's packages and from Go modules; where an image
// must be named, the name is made or asked for when it is needed. (A pattern
// with brackets does not match itself.)
var registryHosts = regexp.MustCompile(`\b(registry[.]k8s|k8s[.]gcr|gcr|ghcr|quay)[.]io\b|\bdocker[.]io/|\b(mcr[.]microsoft|hub[.]docker|public[.]ecr[.]aws)\b`)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// Files lists the files of the work tree below root that git tracks or would
// track, with slashes.
func Files(ctx context.Context, root string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", root, "ls-files", "-z",
		"--cached", "--others", "--exclude-standard", "--deduplicate")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), nil
}

// CheckFiles lists what is wrong with the content of the named files of tree.
func CheckFiles(tree fs.FS, files []string) ([]string, error) {
	var problems []string
	for _, name := range files {
		info, err := fs.Stat(tree, name)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted in the work tree, or a link
		}
		content, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		problems = append(problems, checkFile(name, content)...)
	}
	return problems, nil
}

func checkFile(name string, content []byte) []string {
	var problems []string
	lines := bytes.Count(content, []byte("\n"))
	if path.Ext(name) == ".go" && lines >= MaxLines && !generated.Match(content) {
		problems = append(problems, fmt.Sprintf("%s: %d lines; split it by subject below %d", name, lines, MaxLines))
	}
	if path.Base(name) == "go.sum" {
		return problems
	}
	for i, line := range bytes.Split(content, []byte("\n")) {
		if host := registryHosts.Find(line); host != nil {
			problems = append(problems, fmt.Sprintf("%s:%d: names the container registry %s", name, i+1, host))
		}
	}
	return problems
}

// CheckModules lists the documents that members of the workspace lack.
func CheckModules(tree fs.FS, modules []workspace.Module) []string {
	var problems []string
	for _, module := range modules {
		if !module.Member || !holdsGo(tree, module.Dir) {
			continue
		}
		for _, document := range []string{"README.md", "doc.go"} {
			if _, err := fs.Stat(tree, path.Join(module.Dir, document)); err != nil {
				problems = append(problems, fmt.Sprintf("%s has no %s", module.Dir, document))
			}
		}
	}
	return problems
}

// CheckVersions lists the dependencies that members require in versions that differ:
// the workspace would select one of them, and a module alone test another, and
// compile it with all that imports it once more. "make tidy" makes them alike.
func CheckVersions(modules []workspace.Module) []string {
	type first struct{ dir, version string }
	seen := make(map[string]first)
	var problems []string
	for _, module := range modules {
		for _, require := range module.File.Require {
			if !module.Member {
				continue
			}
			dependency, version := require.Mod.Path, require.Mod.Version
			other, ok := seen[dependency]
			if !ok {
				seen[dependency] = first{module.Dir, version}
			} else if other.version != version {
				problems = append(problems, fmt.Sprintf("%s requires %s %s, %s requires %s",
					module.Dir, dependency, version, other.dir, other.version))
			}
		}
	}
	return problems
}

// holdsGo says whether there is a Go file in dir or below it: a module that is
// only a place in the workspace yet has nothing to document.
func holdsGo(tree fs.FS, dir string) bool {
	found := errors.New("found")
	err := fs.WalkDir(tree, dir, func(name string, _ fs.DirEntry, err error) error {
		if err == nil && path.Ext(name) == ".go" {
			return found
		}
		return err
	})
	return errors.Is(err, found)
}
