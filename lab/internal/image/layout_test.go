package image

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A reader that has the lowest layer gets the same image as from Write.
func TestWriteAbove(t *testing.T) {
	dir := t.TempDir()
	img := Image{Name: "x.example/agent:dev", Entrypoint: []string{"/agent"}}
	for _, name := range []string{"base", "program"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		img.Layers = append(img.Layers, path)
	}
	var thin, whole bytes.Buffer
	if err := WriteAbove(&thin, img); err != nil {
		t.Fatal(err)
	}
	if err := Write(&whole, img); err != nil {
		t.Fatal(err)
	}
	files, _ := read(t, &thin)
	wholeFiles, _ := read(t, &whole)
	into := func(files map[string]string, name string, v any) {
		t.Helper()
		if err := json.Unmarshal([]byte(files[name]), v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var index struct{ Manifests []descriptor }
	into(files, "index.json", &index)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != img.Name {
		t.Errorf("name is %q", got)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	into(files, index.Manifests[0].path(), &manifest)
	if _, there := files[manifest.Layers[0].path()]; there || manifest.Layers[0].Size != 4 {
		t.Errorf("the lowest layer is %+v, in the archive: %v", manifest.Layers[0], there)
	}
	if got := files[manifest.Layers[1].path()]; got != "program" {
		t.Errorf("the layer above is %q", got)
	}
	var got, want config
	into(files, manifest.Config.path(), &got)
	var entries []manifestEntry
	into(wholeFiles, "manifest.json", &entries)
	into(wholeFiles, entries[0].Config, &want)
	if !slices.Equal(got.RootFS.DiffIDs, want.RootFS.DiffIDs) || got.Config.Entrypoint[0] != want.Config.Entrypoint[0] {
		t.Errorf("configuration is %+v, want %+v", got, want)
	}
}

// Images that share all but their names are in the archive once, under both.
func TestWriteAboveOfSeveral(t *testing.T) {
	dir := t.TempDir()
	var layers []string
	for _, name := range []string{"base", "program"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		layers = append(layers, path)
	}
	var out bytes.Buffer
	err := WriteAbove(&out, Image{Name: "x.example/one:1", Layers: layers}, Image{Name: "x.example/one:2", Layers: layers},
		Image{Name: "x.example/other:1", Layers: layers, Entrypoint: []string{"/other"}})
	if err != nil {
		t.Fatal(err)
	}
	files, _ := read(t, &out) // fails if anything is in it twice
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	digests := map[string]string{}
	for _, m := range index.Manifests {
		digests[m.Annotations["io.containerd.image.name"]] = m.Digest
	}
	if len(digests) != 3 || digests["x.example/one:1"] != digests["x.example/one:2"] || digests["x.example/one:1"] == digests["x.example/other:1"] {
		t.Errorf("images are %v", digests)
	}
}
