package products

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/image"
)

// AgentArchive builds the agent from its sources and writes its image to the
// file archive. The image has Debian's iptables, ipset, conntrack and kmod
// below it, as the agent's own Dockerfile does.
func (m Maker) AgentArchive(ctx context.Context, source, archive string, note func(string)) (err error) {
	program, err := m.Program(ctx, source, "./cmd/portway", note)
	if err != nil {
		return err
	}
	rootfs, err := m.rootfs(ctx, "pod-rootfs.tar", podPackages(), nil, note)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(m.Store.Dir, "agent-")
	if err != nil {
		return fmt.Errorf("agent image: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // a directory of temporary files
	layer, err := layers{work}.write("agent", image.Entry{Path: "/usr/local/bin/portway", From: program, Mode: 0o755})
	if err != nil {
		return err
	}
	f, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("agent image: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return image.Write(f, image.Image{
		Name: AgentImage, Layers: []string{rootfs, layer}, Env: []string{searchPath},
		Entrypoint: []string{"/usr/local/bin/portway"},
	})
}

// Kubectl builds kubectl alone, for clusters whose Kubernetes is not built
// here.
func (m Maker) Kubectl(ctx context.Context, note func(string)) (string, error) {
	p := kubernetesPrograms()
	p.main = []string{"k8s.io/kubernetes/cmd/kubectl"}
	dir, err := m.build(ctx, p, note)
	return filepath.Join(dir, "kubectl"), err
}
