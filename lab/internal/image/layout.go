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

// WriteAbove writes an archive of one image without its lowest layer: for
// whoever has that layer, under any name, from an image that Write wrote. It is
// in the OCI layout, which `ctr images import` takes; `docker load` insists on
// all layers. The name must have a host part: it is taken as it is.
func WriteAbove(w io.Writer, img Image) error {
	a := &layout{tw: tar.NewWriter(w)}
	if err := a.write(img); err != nil {
		return fmt.Errorf("image %s: %w", img.Name, err)
	}
	return a.tw.Close()
}

type layout struct{ tw *tar.Writer }

func (a *layout) write(img Image) error {
	var layers []descriptor
	for i, path := range img.Layers {
		layer, err := describe(path)
		if err != nil {
			return fmt.Errorf("layer %s: %w", path, err)
		}
		if i > 0 {
			if err := a.copyBlob(layer, path); err != nil {
				return fmt.Errorf("layer %s: %w", path, err)
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
		return err
	}
	manifest, err := a.blob(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers,
	})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": img.Name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{manifest}})
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

func (a *layout) copyBlob(d descriptor, path string) error {
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
	return d, writeFile(a.tw, d.path(), raw)
}
