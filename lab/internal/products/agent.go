package products

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/image"
)

// AgentArchive builds the agent and portwayctl from the directory of services,
// writes their image to the file archive and returns an id that changes with
// its content. Below the programs are Debian's iptables, ipset, conntrack and
// kmod, as in the agent's own Dockerfile: the root file system of all pods, which
// is left out if it is the one that the nodes have.
func (m Maker) AgentArchive(ctx context.Context, services, archive, have string, note func(string)) (id string, err error) {
	rootfs, err := m.rootfs(ctx, "pod-rootfs.tar", podPackages(), nil, note)
	if err != nil {
		return "", err
	}
	work, err := m.workDir("agent")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	key := new(cache.Key).Add("rootfs", filepath.Base(rootfs))
	var entries []image.Entry
	for _, p := range []struct{ module, name string }{{"agent", "portway"}, {"ctl", "portwayctl"}} {
		program, err := m.program(ctx, filepath.Join(services, p.module), p.name, work, note)
		if err != nil {
			return "", err
		}
		if err := key.AddFile(p.name, program); err != nil {
			return "", err
		}
		entries = append(entries, image.Entry{Path: "/usr/local/bin/" + p.name, From: program, Mode: 0o755})
	}
	layer, err := layers{work}.write("agent", entries...)
	if err != nil {
		return "", err
	}
	f, err := os.Create(archive)
	if err != nil {
		return "", fmt.Errorf("agent image: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	img := image.Image{
		Name: AgentImage, Layers: []string{rootfs, layer}, Env: []string{searchPath},
		Entrypoint: []string{"/usr/local/bin/portway"},
	}
	if rootfs == have {
		return key.String(), image.WriteAbove(f, img)
	}
	return key.String(), image.Write(f, img)
}

// Kubernetes builds one of Kubernetes' programs alone, for clusters whose
// Kubernetes is not built here, and returns it.
func (m Maker) Kubernetes(ctx context.Context, pkg string, note func(string)) (string, error) {
	p := kubernetesPrograms()
	p.main = []string{"k8s.io/kubernetes/" + pkg}
	dir, err := m.build(ctx, p, note)
	return filepath.Join(dir, filepath.Base(pkg)), err
}
