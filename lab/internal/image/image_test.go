package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// read returns the files of a tar, and their headers in order.
func read(t *testing.T, r io.Reader) (map[string]string, []*tar.Header) {
	t.Helper()
	files := map[string]string{}
	var headers []*tar.Header
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[h.Name]; twice {
			t.Errorf("%s is in the archive twice", h.Name)
		}
		files[h.Name] = string(content)
		headers = append(headers, h)
	}
}

func TestWriteLayer(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	entries := []Entry{
		{Path: "/usr/local/bin/program", From: program, Mode: 0o755},
		{Path: "/etc/config", Content: "key = 1\n"},
		{Path: "/etc/manifests/", Mode: 0o700},
		{Path: "/usr/local/alias", Link: "bin/program"},
	}
	var out bytes.Buffer
	if err := WriteLayer(&out, entries); err != nil {
		t.Fatal(err)
	}
	files, headers := read(t, bytes.NewReader(out.Bytes()))
	if files["usr/local/bin/program"] != "ELF" || files["etc/config"] != "key = 1\n" {
		t.Errorf("files are %v", files)
	}
	var names []string
	for _, h := range headers {
		names = append(names, h.Name)
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		switch h.Name {
		case "usr/local/bin/program":
			if h.Mode != 0o755 {
				t.Errorf("%s has mode %o", h.Name, h.Mode)
			}
		case "usr/local/alias":
			if h.Linkname != "bin/program" || h.Typeflag != tar.TypeSymlink {
				t.Errorf("%s is %c to %q", h.Name, h.Typeflag, h.Linkname)
			}
		}
	}
	want := []string{"etc/", "etc/config", "etc/manifests/", "usr/", "usr/local/", "usr/local/alias", "usr/local/bin/", "usr/local/bin/program"}
	if !slices.Equal(names, want) {
		t.Errorf("entries are %v, want %v", names, want)
	}
	slices.Reverse(entries)
	var again bytes.Buffer
	if err := WriteLayer(&again, entries); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the order of the entries changes the bytes")
	}
	if err := WriteLayer(io.Discard, []Entry{{Path: "/x", From: program + ".absent"}}); err == nil {
		t.Error("no error for a file that is not there")
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	layer := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("layer "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base, top := layer("base"), layer("top")
	var out bytes.Buffer
	err := Write(&out,
		Image{Name: "one:dev", Layers: []string{base, top}, Entrypoint: []string{"/one"}, Env: []string{"A=b"}},
		Image{Name: "two:dev", Layers: []string{base}})
	if err != nil {
		t.Fatal(err)
	}
	files, _ := read(t, &out) // fails if the shared layer is in it twice
	var manifest []manifestEntry
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 2 || !slices.Equal(manifest[0].RepoTags, []string{"one:dev"}) || manifest[1].Layers[0] != manifest[0].Layers[0] {
		t.Errorf("manifest is %+v", manifest)
	}
	for _, entry := range manifest {
		raw := files[entry.Config]
		if sum := sha256.Sum256([]byte(raw)); entry.Config != hex.EncodeToString(sum[:])+".json" {
			t.Errorf("configuration %s is not named by its content", entry.Config)
		}
		var c config
		if err := json.Unmarshal([]byte(raw), &c); err != nil {
			t.Fatal(err)
		}
		for i, name := range entry.Layers {
			sum := sha256.Sum256([]byte(files[name]))
			if want := "sha256:" + hex.EncodeToString(sum[:]); c.RootFS.DiffIDs[i] != want {
				t.Errorf("%v: layer %d has digest %s, want %s", entry.RepoTags, i, c.RootFS.DiffIDs[i], want)
			}
		}
	}
	if err := Write(io.Discard, Image{Name: "x", Layers: []string{base + ".absent"}}); err == nil {
		t.Error("no error for a layer that is not there")
	}
}
