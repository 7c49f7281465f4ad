package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

func TestSync(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("archives: %v, %v", archives, err)
	}
	for _, archive := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".txtar"), func(t *testing.T) {
			have, want := load(t, archive)
			root := lay(t, have)

			if err := run(&bytes.Buffer{}, root, true); err == nil {
				t.Error("-check passes before the files are written")
			}
			compare(t, root, have) // -check writes nothing

			if err := run(&bytes.Buffer{}, root, false); err != nil {
				t.Fatal(err)
			}
			compare(t, root, want)
			if err := run(&bytes.Buffer{}, root, true); err != nil {
				t.Errorf("-check after the files are written: %v", err)
			}
		})
	}
}

func TestSyncRefuses(t *testing.T) {
	for _, test := range []struct{ name, work, mod, want string }{
		{
			name: "a sibling that does not exist",
			work: "go 1.26.0\n",
			mod:  "module github.com/portway/portway/a\n\nrequire github.com/portway/portway/gone v0.0.0\n",
			want: "a/go.mod: requires github.com/portway/portway/gone",
		},
		{
			name: "a module that is not called after its directory",
			work: "go 1.26.0\n",
			mod:  "module github.com/portway/portway/b\n",
			want: "its module must be called github.com/portway/portway/a",
		},
		{
			name: "a broken go.work",
			work: "use (\n",
			mod:  "module github.com/portway/portway/a\n",
			want: "go.work:",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := lay(t, map[string]string{"go.work": test.work, "a/go.mod": test.mod})
			err := run(&bytes.Buffer{}, root, false)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v does not say %q", err, test.want)
			}
		})
	}
}

// load reads the files as they are (have/…) and as they must become (want/…; a
// file not named there must stay as it is).
func load(t *testing.T, archive string) (have, want map[string]string) {
	t.Helper()
	parsed, err := txtar.ParseFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	have, want = make(map[string]string), make(map[string]string)
	for _, file := range parsed.Files {
		if name, ok := strings.CutPrefix(file.Name, "have/"); ok {
			have[name], want[name] = string(file.Data), string(file.Data)
		}
	}
	for _, file := range parsed.Files {
		if name, ok := strings.CutPrefix(file.Name, "want/"); ok {
			want[name] = string(file.Data)
		}
	}
	return have, want
}

func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func compare(t *testing.T, root string, want map[string]string) {
	t.Helper()
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != content {
			t.Errorf("%s is\n%s\nwant\n%s", name, got, content)
		}
	}
}
