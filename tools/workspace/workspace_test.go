package workspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestModules(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{
		"tools", "tools/lint", "modules/a", "modules/a/testdata/x", "modules/b/build/c", "build/kernel", ".cache/m",
	} {
		path := filepath.Join(root, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		mod := "module " + Prefix + dir + "\n"
		if err := os.WriteFile(filepath.Join(path, "go.mod"), []byte(mod), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	modules, err := Modules(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, module := range modules {
		name := module.Dir
		if !module.Member {
			name += " (alone)"
		}
		got = append(got, name)
	}
	const want = "modules/a, modules/b/build/c, tools, tools/lint (alone)"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestRoot(t *testing.T) {
	root := t.TempDir()
	inner := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Root(inner); err == nil || !strings.Contains(err.Error(), inner) {
		t.Errorf("without a go.work: error %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "go.work"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Root(inner); err != nil || got != root {
		t.Errorf("Root(%s) = %s, %v; want %s", inner, got, err, root)
	}
}

// Members that require one module in different versions compile it, and all that
// imports it, once for each of them when they are built alone.
func TestMembersRequireTheSameVersions(t *testing.T) {
	root, err := Root(".")
	if err != nil {
		t.Fatal(err)
	}
	modules, err := Modules(root)
	if err != nil {
		t.Fatal(err)
	}
	type requirement struct{ dir, version string }
	first := make(map[string]requirement)
	for _, module := range modules {
		if !module.Member {
			continue
		}
		for _, r := range module.File.Require {
			known, ok := first[r.Mod.Path]
			if !ok {
				first[r.Mod.Path] = requirement{module.Dir, r.Mod.Version}
			} else if known.version != r.Mod.Version {
				t.Errorf("%s requires %s, %s requires %s: make tidy", module.Dir, r.Mod, known.dir, known.version)
			}
		}
	}
	if len(first) == 0 {
		t.Error("no member requires anything")
	}
}
