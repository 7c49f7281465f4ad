package products

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/command"
)

// suiteTools are fakeTools that have compiled upstream's tests, too.
type suiteTools struct {
	*fakeTools
	dir    string // of Kubernetes' module
	images string
}

func (f suiteTools) Run(ctx context.Context, c command.Cmd) (string, error) {
	switch {
	case slices.Contains(c.Args, "--list-images"):
		return f.images, nil
	case slices.Contains(c.Args, "download"):
		return `{"Dir": "` + f.dir + `"}`, nil
	}
	out, err := f.fakeTools.Run(ctx, c)
	if i := slices.Index(c.Args, "-o"); i > 0 && strings.HasSuffix(c.Args[i+1], "/") && err == nil {
		for _, pkg := range c.Args[i+2:] {
			if err := os.WriteFile(filepath.Join(c.Args[i+1], filepath.Base(pkg)), []byte("program of "+pkg), 0o755); err != nil {
				return "", err
			}
		}
	}
	return out, err
}

func TestSuiteImages(t *testing.T) {
	f := suiteTools{&fakeTools{version: "go1"}, t.TempDir(), "h.example/busybox:1\nh.example/agnhost:2\nh.example/agnhost:1\nh.example/volume/nfs:1\n"}
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(f.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("test/images/agnhost/porter/localhost.crt", "certificate")
	file("test/images/agnhost/porter/localhost.key", "key")
	rootfs := file("rootfs.tar", "everything of Debian")
	m := Maker{Run: f, Store: cache.Store{Dir: t.TempDir()}, Lab: t.TempDir()}
	for _, name := range []string{"conformance", "kubernetes"} {
		for _, input := range []string{"go.mod", "go.sum"} {
			path := filepath.Join(m.Lab, "build", name, input)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	make := func() string {
		t.Helper()
		suite, err := m.Suite(t.Context(), func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		archive, err := m.SuiteImages(t.Context(), suite, rootfs, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		return archive
	}
	first := make()
	raw, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"h.example/agnhost:1"`, `"h.example/agnhost:2"`, `"h.example/busybox:1"`, `"Entrypoint":["/agnhost"],"Cmd":["pause"]`, "certificate", "program of k8s.io/kubernetes/test/images/agnhost"} {
		if !bytes.Contains(raw, []byte(want)) {
			t.Errorf("no %s in the archive", want)
		}
	}
	for _, not := range []string{"nfs", "everything of Debian"} {
		if bytes.Contains(raw, []byte(not)) {
			t.Errorf("%s is in the archive", not)
		}
	}
	f.images = "h.example/agnhost:2\nh.example/volume/nfs:1\nh.example/agnhost:1\nh.example/busybox:1\n"
	m.Run = f
	if again := make(); again != first {
		t.Error("the same images in another order are another product")
	}
	f.images += "h.example/nginx:1\n"
	m.Run = f
	if other := make(); other == first {
		t.Error("one more image is the same product")
	}
}
