package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Media types of the OCI image specification.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor names a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// WriteAbove writes an archive of images without the lowest layer of each: for
// whoever has those layers, under any name, from images that Write wrote. It is
// in the OCI layout, which `ctr images import` takes; `docker load` insists on
// all layers. Names must have a host part: they are taken as they are.
func WriteAbove(w io.Writer, images ...Image) error {
	a := &layout{tw: tar.NewWriter(w), written: map[string]bool{}}
	var manifests []descriptor
	for _, img := range images {
		manifest, err := a.image(img)
		if err != nil {
			return fmt.Errorf("image %s: %w", img.Name, err)
		}
		manifests = append(manifests, manifest)
	}
	if err := a.index(manifests); err != nil {
		return fmt.Errorf("index of images: %w", err)
	}
	return a.tw.Close()
}

type layout struct {
	tw      *tar.Writer
	written map[string]bool // digests of blobs
}

// image writes what img is made of, and returns its manifest under its name.
func (a *layout) image(img Image) (descriptor, error) {
	var layers []descriptor
	for i, path := range img.Layers {
		layer, err := describe(path)
		if err != nil {
			return descriptor{}, fmt.Errorf("layer %s: %w", path, err)
		}
		if i > 0 {
			if err := a.copyBlob(layer, path); err != nil {
				return descriptor{}, fmt.Errorf("layer %s: %w", path, err)
			}
		}
		layers = append(layers, layer)
	}
	c := img.config()
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.Digest)
	}
	config, err := a.blob(configType, c)
	if err != nil {
		return descriptor{}, err
	}
	manifest, err := a.blob(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers,
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": img.Name}
	return manifest, err
}

func (a *layout) index(manifests []descriptor) error {
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests})
	if err != nil {
		return err
	}
	if err := writeFile(a.tw, "index.json", index); err != nil {
		return err
	}
	return writeFile(a.tw, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
}

// describe reads a layer file for its digest.
func describe(path string) (descriptor, error) {
	f, err := os.Open(path)
	if err != nil {
		return descriptor{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	return descriptor{MediaType: layerType, Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: size}, err
}

func (d descriptor) path() string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }

// copyBlob copies a file into the archive, unless it is there.
func (a *layout) copyBlob(d descriptor, path string) error {
	if a.written[d.Digest] {
		return nil
	}
	a.written[d.Digest] = true
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := a.tw.WriteHeader(header(d.path(), d.Size)); err != nil {
		return err
	}
	_, err = io.Copy(a.tw, f)
	return err
}

// blob writes a value as JSON under its digest.
func (a *layout) blob(mediaType string, value any) (descriptor, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(raw)
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(raw))}
	if a.written[d.Digest] {
		return d, nil
	}
	a.written[d.Digest] = true
	return d, writeFile(a.tw, d.path(), raw)
}
