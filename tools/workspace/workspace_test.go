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
