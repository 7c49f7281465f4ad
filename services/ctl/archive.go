package ctl

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// What the files of a saved node are called. All others that end with .yaml,
// .yml or .json hold objects of the API.
const (
	nodeFile    = "node.json"
	rulesFile4  = "iptables.save"
	rulesFile6  = "ip6tables.save"
	setsFile    = "ipset.save"
	relayFile   = "relay.json"
	serversFile = "ipvsadm.save"
	countsFile  = "ip_vs"
	localsFile  = "kube-ipvs0.save"
	sysctlsFile = "sysctl.save"
	objectsFile = "objects.json"
)

// readFiles reads a directory, an archive or a single file. The files come by
// their names, without directories.
func readFiles(path string) (map[string][]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return readDir(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	switch filepath.Ext(path) {
	case ".yaml", ".yml", ".json", ".save", "":
		text, err := io.ReadAll(f)
		return map[string][]byte{filepath.Base(path): text}, err
	}
	return readTar(f)
}

func readDir(path string) (map[string][]byte, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if files[e.Name()], err = os.ReadFile(filepath.Join(path, e.Name())); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func readTar(r io.Reader) (map[string][]byte, error) {
	files := make(map[string][]byte)
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read it as a tar archive: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[filepath.Base(h.Name)], err = io.ReadAll(archive); err != nil {
			return nil, fmt.Errorf("read %s of the tar archive: %w", h.Name, err)
		}
	}
}

// archiver writes files into an archive.
type archiver struct {
	tar *tar.Writer
	now time.Time
}

func (a *archiver) add(name string, text []byte) error {
	h := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), ModTime: a.now, Format: tar.FormatPAX}
	if err := a.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if _, err := a.tar.Write(text); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
