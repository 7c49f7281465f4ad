package products

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/image"
)

// fakeTools is the go and mmdebstrap commands with memory: what they were asked
// to make is made, with content that tells what it came from.
type fakeTools struct {
	version string
	made    []string
	fail    error
}

func (f *fakeTools) Run(_ context.Context, c command.Cmd) (string, error) {
	switch {
	case c.Args[0] == "go" && c.Args[1] == "env":
		return f.version + "\namd64\n", nil
	case c.Args[0] == "go" && (c.Args[1] == "build" || c.Args[1] == "test"):
		out := c.Args[slices.Index(c.Args, "-o")+1]
		c.Line("go: downloading example.org/x v1")
		c.Line("example.org/x")
		f.made = append(f.made, out)
		if f.fail != nil {
			return "", f.fail
		}
		if strings.HasSuffix(out, "/") {
			return "", os.MkdirAll(out, 0o755)
		}
		return "", os.WriteFile(out, []byte(f.version+" "+filepath.Base(c.Dir)), 0o755)
	case c.Args[0] == "mmdebstrap":
		out := c.Args[len(c.Args)-1]
		c.Line("I: extracting archives...")
		f.made = append(f.made, out)
		return "", os.WriteFile(out, []byte(strings.Join(c.Args, " ")), 0o644)
	}
	return "", errors.New("unexpected command " + c.String())
}

func newMaker(t *testing.T, f *fakeTools) Maker {
	t.Helper()
	lab := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		path := filepath.Join(lab, "build", "x", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Maker{Run: f, Store: cache.Store{Dir: t.TempDir()}, Lab: lab}
}

func TestBuildIsCachedByItsInputs(t *testing.T) {
	f := &fakeTools{version: "go1"}
	m := newMaker(t, f)
	p := programs{name: "x", main: []string{"."}}
	var notes []string
	note := func(s string) { notes = append(notes, s) }
	build := func(p programs) string {
		t.Helper()
		dir, err := m.build(t.Context(), p, note)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	first := build(p)
	if again := build(p); again != first || len(f.made) != 1 {
		t.Errorf("the same inputs gave %s and %s, %d builds", first, again, len(f.made))
	}
	if want := []string{"x: downloading example.org/x v1", "x: 1 packages compiled"}; !slices.Equal(notes, want) {
		t.Errorf("progress is %q, want %q", notes, want)
	}
	seen := map[string]string{first: "first"}
	distinct := func(name, dir string) {
		t.Helper()
		if other, ok := seen[dir]; ok {
			t.Errorf("%s gives the product of %s", name, other)
		}
		seen[dir] = name
	}
	tests := p
	tests.test = true
	distinct("tests", build(tests))
	tagged := p
	tagged.tags = "no_zfs"
	distinct("tags", build(tagged))
	stamped := p
	stamped.ldflags = "-X v=1"
	distinct("ldflags", build(stamped))
	for _, file := range []string{"go.sum", "go.mod", "main.go"} {
		if err := os.WriteFile(filepath.Join(m.Lab, "build", "x", file), []byte("changed"), 0o644); err != nil {
			t.Fatal(err)
		}
		distinct(file, build(p))
	}
	f.version = "go2"
	distinct("Go's version", build(p))
}

func TestFailedBuildIsNoProduct(t *testing.T) {
	f := &fakeTools{version: "go1", fail: errors.New("does not compile")}
	m := newMaker(t, f)
	p := programs{name: "x", main: []string{"example.org/x"}}
	if _, err := m.build(t.Context(), p, func(string) {}); !errors.Is(err, f.fail) {
		t.Fatalf("error is %v", err)
	}
	f.fail = nil
	if _, err := m.build(t.Context(), p, func(string) {}); err != nil {
		t.Errorf("after the cause is gone: %v", err)
	}
}

func TestRootfs(t *testing.T) {
	f := &fakeTools{}
	m := newMaker(t, f)
	ignore := func(string) {}
	one, err := m.rootfs(t.Context(), "a.tar", []string{"iptables", "kmod"}, []string{"rm x"}, ignore)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(one)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--include=iptables,kmod", "--customize-hook=rm x", "--format=tar", " bookworm "} {
		if !strings.Contains(string(content), want) {
			t.Errorf("mmdebstrap was not told %q: %s", want, content)
		}
	}
	if other, err := m.rootfs(t.Context(), "a.tar", []string{"iptables", "kmod"}, nil, ignore); err != nil || other == one {
		t.Errorf("without the hook: %s, %v", other, err)
	}
}

func TestAgentArchive(t *testing.T) {
	f := &fakeTools{version: "first"}
	m := newMaker(t, f)
	file := filepath.Join(t.TempDir(), "agent.tar")
	have := ""
	build := func() string {
		t.Helper()
		id, err := m.AgentArchive(t.Context(), "/services", file, have, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := build()
	if again := build(); again != first {
		t.Errorf("the same sources gave ids %s and %s", first, again)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{AgentImage, "usr/local/bin/portwayctl", "first agent", "first ctl"} {
		if !bytes.Contains(raw, []byte(want)) {
			t.Errorf("no %q in the archive", want)
		}
	}
	if have, err = m.rootfs(t.Context(), "pod-rootfs.tar", podPackages(), nil, func(string) {}); err != nil {
		t.Fatal(err)
	}
	lowest, err := os.ReadFile(have)
	if err != nil {
		t.Fatal(err)
	}
	if again := build(); again != first {
		t.Errorf("for nodes that have its lowest layer, the id is %s and not %s", again, first)
	}
	thin, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(raw, lowest) || bytes.Contains(thin, lowest) {
		t.Error("the lowest layer is left out otherwise than for nodes that have it")
	}
	f.version = "second"
	if other := build(); other == first {
		t.Error("another program gave the same id")
	}
	left, err := filepath.Glob(filepath.Join(m.Store.Dir, "making-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("work directories left: %v, %v", left, err)
	}
}

func TestContainerdConfig(t *testing.T) {
	in := "version = 2\n[plugins.\"cri\"]\n  sandbox_image = \"old/pause:1\"\n  # x\n  restrict_oom_score_adj = false\n"
	got, err := containerdConfig(in, "new/pause:2")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"version = 2\n", `sandbox_image = "new/pause:2"`, "restrict_oom_score_adj = true", "config_path = "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "old/pause") {
		t.Errorf("the old pause image is still named in\n%s", got)
	}
	for _, bad := range []string{"", strings.Replace(in, "sandbox_image", "pinned_image", 1), in + "  sandbox_image = \"x\"\n"} {
		if _, err := containerdConfig(bad, "p"); err == nil {
			t.Errorf("no error for\n%s", bad)
		}
	}
}

func TestNodeEntries(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, "images", "base", "files", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/local/bin/entrypoint", "#!/bin/bash\n")
	write("etc/containerd/config.toml", "sandbox_image = \"x\"\nrestrict_oom_score_adj = false\n")
	n := &Node{kind: root, bins: binaries{others: map[string]string{}}}
	entries, err := n.entries([]string{"r/kube-apiserver:v1", "r/pause:3"})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]image.Entry{}
	for _, e := range entries {
		if _, twice := at[e.Path]; twice {
			t.Errorf("%s is there twice", e.Path)
		}
		at[e.Path] = e
		// /bin, /lib and /sbin are links into /usr in Debian; an entry below
		// them would replace the link by a directory.
		for _, link := range []string{"/bin/", "/lib/", "/sbin/"} {
			if strings.HasPrefix(e.Path, link) {
				t.Errorf("%s goes through a link", e.Path)
			}
		}
	}
	if e := at["/usr/local/bin/entrypoint"]; e.Mode != 0o755 {
		t.Errorf("the entrypoint has mode %o", e.Mode)
	}
	if e := at["/etc/containerd/config.toml"]; !strings.Contains(e.Content, `"r/pause:3"`) {
		t.Errorf("containerd's pause image: %s", e.Content)
	}
	for _, path := range []string{"/usr/bin/kubelet", "/opt/cni/bin/ptp", "/kind/lab/guard.nft", "/kind/lab/entrypoint.sh", "/kind/version"} {
		if _, ok := at[path]; !ok {
			t.Errorf("no %s in the node", path)
		}
	}
	for range 10 { // a map's order must not get into the image's key
		again, err := n.entries([]string{"r/kube-apiserver:v1", "r/pause:3"})
		if err != nil || !slices.Equal(again, entries) {
			t.Fatalf("the same node has other entries, %v", err)
		}
	}
	if _, err := n.entries([]string{"r/kube-apiserver:v1"}); err == nil {
		t.Error("no error without a pause image")
	}
}

func TestNodeKeyFollowsEveryPart(t *testing.T) {
	base := func() *Node {
		n := &Node{nodeRootfs: "/c/node-1", podRootfs: "/c/pod-1", bins: binaries{kubernetes: "/c/k-1", pause: "/c/pause-1/pause", others: map[string]string{}}}
		for _, p := range nodePrograms() {
			n.bins.others[p.name] = "/c/" + p.name + "-1"
		}
		return n
	}
	entries := []image.Entry{{Path: "/a", Content: "b"}}
	keys := map[string]string{base().key(entries, []string{"i:1"}).String(): "base"}
	check := func(name string, n *Node, entries []image.Entry, images ...string) {
		k := n.key(entries, images).String()
		if other, ok := keys[k]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		keys[k] = name
	}
	for name, change := range map[string]func(*Node){
		"kubernetes": func(n *Node) { n.bins.kubernetes = "/c/k-2" },
		"node":       func(n *Node) { n.nodeRootfs = "/c/node-2" },
		"pods":       func(n *Node) { n.podRootfs = "/c/pod-2" },
		"pause":      func(n *Node) { n.bins.pause = "/c/pause-2/pause" },
		"containerd": func(n *Node) { n.bins.others["containerd"] = "/c/containerd-2" },
	} {
		n := base()
		change(n)
		check(name, n, entries, "i:1")
	}
	check("file", base(), []image.Entry{{Path: "/a", Content: "c"}}, "i:1")
	check("images", base(), entries, "i:2")
}

func TestControlPlaneImages(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, name := range []string{"k/kube-apiserver", "k/kube-proxy", "k/agnhost", "e/etcd", "c/coredns"} {
		file(name)
	}
	b := binaries{kubernetes: filepath.Join(dir, "k"), pause: file("p/pause"), others: map[string]string{"etcd": filepath.Join(dir, "e"), "coredns": filepath.Join(dir, "c")}}
	rootfs := file("rootfs.tar")
	l := layers{t.TempDir()}
	images, err := controlPlane(l, b, rootfs, []string{"r/kube-apiserver:v1", "r/kube-proxy:v1", "r/sub/coredns:v2", "r/etcd:3", "r/pause:3"})
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range images {
		if wantBase := strings.Contains(img.Name, "kube-proxy"); (img.Layers[0] == rootfs) != wantBase {
			t.Errorf("%s has layers %v", img.Name, img.Layers)
		}
	}
	if _, err := controlPlane(l, b, rootfs, []string{"r/unknown:v1"}); err == nil {
		t.Error("no error for an image whose program is not built")
	}
	pods, err := podImages(l, b, rootfs)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := io.Copy(&out, archive(append(images, pods...))); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(out.Bytes(), []byte("rootfs.tar")); n != 1 {
		t.Errorf("the shared layer is in the archive %d times", n)
	}
}

// The version that is stamped into the programs must be the one that is built,
// and its own tests are those of the same.
func TestKubernetesVersionIsPinned(t *testing.T) {
	for _, name := range []string{kubernetesPrograms().name, suiteTests().name} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "build", name, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if want := "k8s.io/kubernetes " + KubernetesVersion + " "; !strings.Contains(string(raw), want) {
			t.Errorf("build/%s/go.mod does not require %q", name, want)
		}
	}
	minor := strings.Split(KubernetesVersion, ".")[1]
	if !strings.Contains(kubernetesStamp, "gitMinor="+minor+" ") {
		t.Errorf("the stamped minor version is not %s", minor)
	}
}
