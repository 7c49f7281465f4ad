// Package image writes container images as archives that `docker load` and
// `ctr images import` take, from layers that are tar files: no daemon and no
// registry takes part.
package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

// Image is what to put into the archive under one name.
type Image struct {
	Name       string
	Layers     []string // paths of uncompressed tar files, lowest first
	Entrypoint []string
	Cmd        []string // the entrypoint's arguments, for containers that give none
	Env        []string
	StopSignal string
}

// Write writes one archive that holds all images. A layer file that several
// images share is in it once. Equal inputs give equal bytes.
func Write(w io.Writer, images ...Image) error {
	tw := tar.NewWriter(w)
	a := &archive{tw: tw, digests: map[string]string{}}
	for _, img := range images {
		if err := a.add(img); err != nil {
			return fmt.Errorf("image %s: %w", img.Name, err)
		}
	}
	if err := a.file("manifest.json", a.manifest); err != nil {
		return err
	}
	return tw.Close()
}

type archive struct {
	tw       *tar.Writer
	digests  map[string]string // layer file -> digest
	manifest []manifestEntry
}

type manifestEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type config struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       runConfig `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type runConfig struct {
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	Env        []string `json:",omitempty"`
	StopSignal string   `json:",omitempty"`
	WorkingDir string   `json:",omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// config is the image's configuration, as yet without layers.
func (img Image) config() config {
	return config{
		Created: time.Unix(0, 0).UTC(), Architecture: runtime.GOARCH, OS: "linux",
		Config: runConfig{Entrypoint: img.Entrypoint, Cmd: img.Cmd, Env: img.Env, StopSignal: img.StopSignal, WorkingDir: "/"},
		RootFS: rootFS{Type: "layers"},
	}
}

func (a *archive) add(img Image) error {
	entry := manifestEntry{RepoTags: []string{img.Name}}
	c := img.config()
	for _, path := range img.Layers {
		digest, err := a.layer(path)
		if err != nil {
			return fmt.Errorf("layer %s: %w", path, err)
		}
		entry.Layers = append(entry.Layers, digest+".tar")
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, "sha256:"+digest)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(raw)
	entry.Config = hex.EncodeToString(sum[:]) + ".json"
	a.manifest = append(a.manifest, entry)
	return writeFile(a.tw, entry.Config, raw)
}

// layer copies the file into the archive unless it is there, and returns its
// digest.
func (a *archive) layer(path string) (string, error) {
	if digest, ok := a.digests[path]; ok {
		return digest, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return "", err
	}
	digest := hex.EncodeToString(h.Sum(nil))
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if err := a.tw.WriteHeader(header(digest+".tar", size)); err != nil {
		return "", err
	}
	if _, err := io.Copy(a.tw, f); err != nil {
		return "", err
	}
	a.digests[path] = digest
	return digest, nil
}

func (a *archive) file(name string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeFile(a.tw, name, raw)
}

func writeFile(tw *tar.Writer, name string, content []byte) error {
	if err := tw.WriteHeader(header(name, int64(len(content)))); err != nil {
		return err
	}
	_, err := tw.Write(content)
	return err
}

func header(name string, size int64) *tar.Header {
	return &tar.Header{Name: name, Size: size, Mode: 0o644, ModTime: time.Unix(0, 0)}
}
