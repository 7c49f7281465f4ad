package image

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Entry is one file, directory or symbolic link of a layer.
type Entry struct {
	Path    string // where it is in the image, with a leading slash
	From    string // a file of this machine to copy, or
	Content string // the content itself, or
	Link    string // the target of a symbolic link
	Mode    int64  // 0: 0644; a directory if os.ModeDir is implied by a trailing slash in Path
}

// WriteLayer writes a layer with the entries, sorted, owned by root, with the
// directories above them. Equal inputs give equal bytes.
func WriteLayer(w io.Writer, entries []Entry) error {
	tw := tar.NewWriter(w)
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	made := map[string]bool{"/": true}
	for _, e := range entries {
		if err := parents(tw, made, path.Dir(strings.TrimSuffix(e.Path, "/"))); err != nil {
			return fmt.Errorf("layer entry %s: %w", e.Path, err)
		}
		if err := writeEntry(tw, made, e); err != nil {
			return fmt.Errorf("layer entry %s: %w", e.Path, err)
		}
	}
	return tw.Close()
}

func parents(tw *tar.Writer, made map[string]bool, dir string) error {
	if made[dir] {
		return nil
	}
	if err := parents(tw, made, path.Dir(dir)); err != nil {
		return err
	}
	made[dir] = true
	return tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: time.Unix(0, 0),
	})
}

func writeEntry(tw *tar.Writer, made map[string]bool, e Entry) error {
	h := &tar.Header{Name: strings.TrimPrefix(e.Path, "/"), Mode: e.Mode, ModTime: time.Unix(0, 0)}
	if h.Mode == 0 {
		h.Mode = 0o644
	}
	switch {
	case strings.HasSuffix(e.Path, "/"):
		made[strings.TrimSuffix(e.Path, "/")] = true
		h.Typeflag = tar.TypeDir
		return tw.WriteHeader(h)
	case e.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Link, 0o777
		return tw.WriteHeader(h)
	case e.From != "":
		return copyFile(tw, h, e.From)
	}
	h.Size = int64(len(e.Content))
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.WriteString(tw, e.Content)
	return err
}

func copyFile(tw *tar.Writer, h *tar.Header, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}
