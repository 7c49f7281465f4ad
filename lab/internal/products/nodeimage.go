package products

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/docker"
	"github.com/portway/portway/lab/internal/image"
	"github.com/portway/portway/lab/internal/step"
)

// Node is what an offline cluster is made from.
type Node struct {
	bins       binaries
	nodeRootfs string
	podRootfs  string
	kind       string // the directory of kind's module
	Kubectl    string // the program
	PodRootfs  string // the layer below every pod image
}

// Prepare returns the steps that make the parts of n.
func (m Maker) Prepare(n *Node) []step.Step {
	compile := step.Step{Name: "Compile", Run: func(ctx context.Context, note func(string)) error {
		return m.compile(ctx, &n.bins, note)
	}}
	debootstrap := step.Step{Name: "Debian", Run: func(ctx context.Context, note func(string)) (err error) {
		if n.nodeRootfs, err = m.rootfs(ctx, "node-rootfs.tar", nodePackages(), bootable(), note); err != nil {
			return err
		}
		n.podRootfs, err = m.rootfs(ctx, "pod-rootfs.tar", podPackages(), nil, note)
		return err
	}}
	return []step.Step{
		step.Parallel("Make Kubernetes "+KubernetesVersion+" and its node from Go modules and Debian packages (20 minutes the first time)", compile, debootstrap),
		{Name: "Find kind's node files", Run: func(ctx context.Context, _ func(string)) (err error) {
			n.Kubectl, n.PodRootfs = filepath.Join(n.bins.kubernetes, "kubectl"), n.podRootfs
			n.kind, err = m.moduleDir(ctx, m.Lab, "sigs.k8s.io/kind")
			return err
		}},
	}
}

func (m Maker) compile(ctx context.Context, b *binaries, note func(string)) (err error) {
	if b.kubernetes, err = m.build(ctx, kubernetesPrograms(), note); err != nil {
		return err
	}
	b.others = map[string]string{}
	for _, p := range nodePrograms() {
		if b.others[p.name], err = m.build(ctx, p, note); err != nil {
			return err
		}
	}
	if b.pause, err = m.Own(ctx, "pause", note); err != nil {
		return err
	}
	b.labexec, err = m.Own(ctx, "labexec", note)
	return err
}

// Image returns the name of the node image in Docker, which is made if it is
// not there yet.
func (n *Node) Image(ctx context.Context, m Maker, d docker.Client, note func(string)) (string, error) {
	required, err := m.requiredImages(ctx, filepath.Join(n.bins.kubernetes, "kubeadm"))
	if err != nil {
		return "", err
	}
	entries, err := n.entries(required)
	if err != nil {
		return "", err
	}
	name := nodeRepository + ":" + n.key(entries, required).String()
	unlock, err := cache.Lock(ctx, filepath.Join(m.Store.Dir, "node-image.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if d.HasImage(ctx, name) {
		return name, nil
	}
	work, err := m.workDir("node")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	b := nodeBuild{node: n, docker: d, layers: layers{work}, name: name, required: required}
	return name, b.run(ctx, entries, note)
}

// key is over everything that the image is made from. The paths of cached
// products stand for their content.
func (n *Node) key(entries []image.Entry, required []string) *cache.Key {
	key := new(cache.Key).Add("import", importScript).Add("kubernetes", filepath.Base(n.bins.kubernetes)).
		Add("node", filepath.Base(n.nodeRootfs)).Add("pods", filepath.Base(n.podRootfs)).
		Add("pause", filepath.Base(filepath.Dir(n.bins.pause))).
		Add("labexec", filepath.Base(filepath.Dir(n.bins.labexec))).Add("images", strings.Join(required, " "))
	for _, p := range nodePrograms() {
		key.Add(p.name, filepath.Base(n.bins.others[p.name]))
	}
	for _, e := range entries {
		key.Add(e.Path, e.Content+e.Link)
	}
	return key
}

// entries are the files of a node above Debian's, always in the same order: they
// are part of the image's key.
func (n *Node) entries(required []string) ([]image.Entry, error) {
	pause := ""
	for _, name := range required {
		if strings.Contains(name, "/pause:") {
			pause = name
		}
	}
	if pause == "" {
		return nil, fmt.Errorf("node image: kubeadm names no pause image among %s", strings.Join(required, ", "))
	}
	entries, err := kindFiles(n.kind, pause)
	if err != nil {
		return nil, err
	}
	own, err := labFiles()
	if err != nil {
		return nil, err
	}
	entries = append(entries, own...)
	add := func(dir, from string, names ...string) {
		for _, name := range names {
			entries = append(entries, image.Entry{Path: dir + name, From: filepath.Join(from, name), Mode: 0o755})
		}
	}
	add("/usr/bin/", n.bins.kubernetes, "kubeadm", "kubectl", "kubelet")
	add("/usr/local/bin/", n.bins.others["containerd"], "containerd", "containerd-shim-runc-v2", "ctr")
	add("/usr/local/bin/", n.bins.others["critools"], "crictl")
	add("/usr/local/bin/", filepath.Dir(n.bins.labexec), "labexec")
	add("/opt/cni/bin/", n.bins.others["cni"], "host-local", "loopback", "portmap", "ptp")
	slices.SortFunc(entries, func(a, b image.Entry) int { return strings.Compare(a.Path, b.Path) })
	return entries, nil
}

// nodeBuild turns the parts into an image in Docker: file systems in, then the
// images of the control plane into its containerd, then a commit.
type nodeBuild struct {
	node     *Node
	docker   docker.Client
	layers   layers
	name     string
	required []string
}

func (b nodeBuild) run(ctx context.Context, entries []image.Entry, note func(string)) error {
	note("writing the file system")
	files, err := b.layers.write("node", entries...)
	if err != nil {
		return err
	}
	base := image.Image{
		Name: b.name + "-base", Layers: []string{b.node.nodeRootfs, files}, Env: []string{searchPath, "container=docker"},
		StopSignal: "SIGRTMIN+3", // systemd's; SIGTERM would start it anew
	}
	load := b.docker.Cmd("load", "--quiet")
	load.Stdin = archive([]image.Image{base})
	if _, err := b.docker.Run.Run(ctx, load); err != nil {
		return fmt.Errorf("node image %s: %w", b.name, err)
	}
	// Nothing of the build may reach a network, and no other privilege is needed.
	container, err := b.docker.Output(ctx, "run", "--detach", "--network=none", "--security-opt=seccomp=unconfined", "--entrypoint=sleep", base.Name, "infinity")
	if err != nil {
		return fmt.Errorf("node image %s: %w", b.name, err)
	}
	defer b.docker.Output(context.WithoutCancel(ctx), "rm", "--force", "--volumes", container) //nolint:errcheck // nothing more can be done
	if err := b.fill(ctx, container, note); err != nil {
		return fmt.Errorf("node image %s: %w", b.name, err)
	}
	note("committing")
	_, err = b.docker.Output(ctx, "commit", "--change", `ENTRYPOINT ["/bin/sh", "/kind/lab/entrypoint.sh", "/sbin/init"]`, container, b.name)
	if err != nil {
		return fmt.Errorf("node image %s: %w", b.name, err)
	}
	return b.removeOlder(ctx)
}

// removeOlder removes the node images that this one replaces: each is more than
// a gigabyte. Docker refuses to remove one that a node still uses.
func (b nodeBuild) removeOlder(ctx context.Context) error {
	out, err := b.docker.Output(ctx, "image", "ls", "--format={{.Repository}}:{{.Tag}}", nodeRepository)
	if err != nil {
		return fmt.Errorf("older node images: %w", err)
	}
	for _, name := range strings.Fields(out) {
		if name != b.name {
			_, _ = b.docker.Output(ctx, "image", "rm", name)
		}
	}
	return nil
}

// nodeRepository is the name of node images in Docker; their tag is their key.
const nodeRepository = "portway-lab/node"

// importScript runs containerd while it imports the archive from its standard
// input. It also makes the base specification of every container, as kind's
// own image does.
const importScript = `set -e
ctr oci spec |
	jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' >/etc/containerd/cri-base.json
containerd >/tmp/containerd.log 2>&1 &
pid=$!
ready=no
for i in $(seq 300); do
	if ctr version >/dev/null 2>&1; then ready=yes; break; fi
	sleep 0.1
done
if [ $ready = no ]; then tail -5 /tmp/containerd.log >&2; exit 1; fi
"$@"
kill $pid
wait $pid || true
rm -rf /tmp/* /run/containerd`

func (b nodeBuild) fill(ctx context.Context, container string, note func(string)) error {
	images, err := controlPlane(b.layers, b.node.bins, b.node.podRootfs, b.required)
	if err != nil {
		return err
	}
	pods, err := podImages(b.layers, b.node.bins, b.node.podRootfs)
	if err != nil {
		return err
	}
	note("importing images")
	load := b.docker.Cmd(append([]string{"exec", "--interactive", container, "bash", "-c", importScript, "import"}, ImportArgs("--no-unpack", "--label=io.cri-containerd.pinned=pinned")...)...)
	load.Stdin = archive(append(images, pods...))
	_, err = b.docker.Run.Run(ctx, load)
	return err
}

// ImportArgs is the command that imports an archive into a node's containerd,
// with further flags: --no-unpack leaves that for the image's first container,
// and io.cri-containerd.pinned keeps it from the kubelet's garbage collection.
func ImportArgs(flags ...string) []string {
	args := []string{"ctr", "--namespace=k8s.io", "images", "import", "--all-platforms", "--digests"}
	return append(append(args, flags...), "-")
}
