// Package products makes what an offline cluster consists of: programs built
// from pinned Go modules, root file systems made of Debian packages, and the
// images assembled from both. Everything comes from the cache when it has been
// made before from the same inputs.
package products

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/command"
)

// Maker makes products.
type Maker struct {
	Run   command.Runner
	Store cache.Store
	Lab   string // the directory of the lab's module
}

// programs are commands of one pinned module, compiled together.
type programs struct {
	name    string // the directory below build/ with the go.mod that pins them
	main    []string
	test    bool   // main is one package, and the program are its tests
	output  string // for a single program: its file name
	tags    string
	ldflags string
}

// KubernetesVersion is what the offline cluster runs. It is stamped into the
// components, which refuse to start as v0.0.0, and must match
// build/kubernetes/go.mod; a test holds that.
const KubernetesVersion = "v1.37.2"

const (
	kubernetesVar   = "-X k8s.io/component-base/version."
	kubernetesStamp = kubernetesVar + "gitVersion=" + KubernetesVersion + " " + kubernetesVar + "gitMajor=1 " +
		kubernetesVar + "gitMinor=37 " + kubernetesVar + "gitTreeState=clean"
	cniPlugins = "github.com/containernetworking/plugins/plugins/"
	containerd = "github.com/containerd/containerd/v2/"
)

// kubernetesPrograms are all built with one set of flags: other flags would
// compile the shared packages again.
func kubernetesPrograms() programs {
	p := programs{name: "kubernetes", ldflags: kubernetesStamp, main: []string{"k8s.io/kubernetes/test/images/agnhost"}}
	for _, c := range []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubeadm", "kubectl", "kubelet"} {
		p.main = append(p.main, "k8s.io/kubernetes/cmd/"+c)
	}
	return p
}

// nodePrograms are the others that a node needs.
func nodePrograms() []programs {
	return []programs{
		{
			name:    "containerd",
			main:    []string{containerd + "cmd/containerd", containerd + "cmd/containerd-shim-runc-v2", containerd + "cmd/ctr"},
			tags:    "no_aufs,no_zfs,no_btrfs,no_devmapper",
			ldflags: "-X " + containerd + "version.Version=v2.3.4",
		},
		{name: "etcd", main: []string{"go.etcd.io/etcd/server/v3"}, output: "etcd"},
		{name: "critools", main: []string{"sigs.k8s.io/cri-tools/cmd/crictl"}},
		{name: "cni", main: []string{cniPlugins + "ipam/host-local", cniPlugins + "main/loopback", cniPlugins + "main/ptp", cniPlugins + "meta/portmap"}},
		{name: "coredns", main: []string{"."}}, // its own main.go
	}
}

// build compiles p and returns the directory with the programs.
func (m Maker) build(ctx context.Context, p programs, note func(string)) (string, error) {
	dir := filepath.Join(m.Lab, "build", p.name)
	version, err := m.Run.Run(ctx, command.Cmd{Args: []string{"go", "env", "GOVERSION", "GOARCH"}, Dir: dir, Env: goEnv()})
	if err != nil {
		return "", fmt.Errorf("programs of %s: %w", p.name, err)
	}
	key := new(cache.Key).Add("go", version).Add("main", strings.Join(p.main, " ")).
		Add("output", p.output).Add("tags", p.tags).Add("ldflags", p.ldflags)
	if p.test {
		key.Add("test", "")
	}
	files := []string{"go.mod", "go.sum"}
	if slices.Equal(p.main, []string{"."}) {
		files = append(files, "main.go")
	}
	for _, file := range files {
		if err := key.AddFile(file, filepath.Join(dir, file)); err != nil {
			return "", fmt.Errorf("programs of %s: %w", p.name, err)
		}
	}
	return m.Store.Get(ctx, p.name, key, func(out string) error {
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
		args := []string{"-tags", p.tags, "-ldflags", "-s -w " + p.ldflags, "-o", filepath.Join(out, p.output) + trailing(p)}
		return m.compileIn(ctx, dir, p.name, p.verb(), append(args, p.main...), note)
	})
}

// verb is the Go command that compiles p. The one for tests does not list the
// packages that it compiles: there, -v is for who runs them.
func (p programs) verb() []string {
	if p.test {
		return []string{"test", "-c", "-vet=off"}
	}
	return []string{"build", "-v"}
}

// compileIn runs a Go command in a module's directory and notes how far it is.
func (m Maker) compileIn(ctx context.Context, dir, name string, verb, args []string, note func(string)) error {
	count := 0
	_, err := m.Run.Run(ctx, command.Cmd{
		Args: slices.Concat([]string{"go"}, verb, []string{"-trimpath"}, args), Dir: dir, Env: goEnv(),
		Line: func(line string) {
			if what, ok := strings.CutPrefix(line, "go: downloading"); ok {
				note(name + ": downloading" + what)
				return
			}
			count++
			note(fmt.Sprintf("%s: %d packages compiled", name, count))
		},
	})
	return err
}

// goEnv makes builds the same wherever they run: static programs of the pinned
// modules.
func goEnv() []string { return []string{"GOWORK=off", "CGO_ENABLED=0", "GOFLAGS="} }

// trailing is what tells `go build -o` that the output is a directory.
func trailing(p programs) string {
	if p.output == "" {
		return "/"
	}
	return ""
}
