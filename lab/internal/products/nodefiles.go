package products

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/portway/portway/lab/internal/image"
)

//go:embed node
var nodeFS embed.FS

// labFiles are the files of this package that go into every node.
func labFiles() ([]image.Entry, error) {
	where := map[string]string{
		"entrypoint.sh":      "/kind/lab/entrypoint.sh",
		"guest.sh":           "/kind/lab/guest.sh",
		"guest-init.sh":      "/kind/lab/guest-init.sh",
		"guest-kubelet.conf": "/kind/lab/guest-kubelet.conf",
		"guard.nft":          "/kind/lab/guard.nft",
		"hosts.toml":         "/etc/containerd/certs.d/_default/hosts.toml",
		"storage.yaml":       "/kind/manifests/default-storage.yaml",
	}
	var entries []image.Entry
	for name, to := range where {
		content, err := nodeFS.ReadFile("node/" + name)
		if err != nil {
			return nil, fmt.Errorf("node file %s: %w", name, err)
		}
		entry := image.Entry{Path: to, Content: string(content)}
		if path.Ext(name) == ".sh" {
			entry.Mode = 0o755
		}
		entries = append(entries, entry)
	}
	for _, unit := range []string{"containerd", "kubelet", "undo-mount-hacks"} {
		entries = append(entries, image.Entry{
			Path: "/etc/systemd/system/multi-user.target.wants/" + unit + ".service",
			Link: "/etc/systemd/system/" + unit + ".service",
		})
	}
	return append(entries,
		image.Entry{Path: "/kind/version", Content: KubernetesVersion},
		image.Entry{Path: "/etc/kubernetes/manifests/", Mode: 0o755},
		image.Entry{Path: "/etc/systemd/journald.conf.d/lab.conf", Content: "[Journal]\nReadKMsg=no\n"},
		// It registers with the kernel of the whole machine.
		image.Entry{Path: "/etc/systemd/system/systemd-binfmt.service", Link: "/dev/null"},
		// Not /sbin, which is a link: a layer that names it would replace it.
		image.Entry{Path: "/usr/sbin/init", Link: "/usr/lib/systemd/systemd"},
	), nil
}

// kindFiles are the files that kind's module ships for its base image, with
// containerd's configuration adapted to this machine.
func kindFiles(root, pauseImage string) ([]image.Entry, error) {
	base := filepath.Join(root, "images", "base", "files")
	var entries []image.Entry
	err := filepath.WalkDir(base, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		e := image.Entry{Path: "/" + strings.TrimPrefix(filepath.ToSlash(file), filepath.ToSlash(base)+"/"), Content: string(content)}
		if dir := path.Dir(e.Path); dir == "/usr/local/bin" || dir == "/kind/bin" {
			e.Mode = 0o755
		}
		if e.Path == "/etc/containerd/config.toml" {
			if e.Content, err = containerdConfig(e.Content, pauseImage); err != nil {
				return err
			}
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("files of kind's base image: %w", err)
	}
	return entries, nil
}

// containerdConfig adapts kind's containerd configuration: the pause image
// that the node holds, no lowering of OOM scores (which needs a capability that
// this machine may lack), no pulling, and no statistics of each container in each
// second, as containerd 2.3 collects them: they cost more than all that the lab
// does (half of a processor on a node whose kernel is a program).
func containerdConfig(toml, pauseImage string) (string, error) {
	lines := strings.Split(toml, "\n")
	changed := 0
	for i, line := range lines {
		switch key, _, _ := strings.Cut(strings.TrimSpace(line), " "); key {
		case "sandbox_image":
			lines[i] = fmt.Sprintf("  sandbox_image = %q", pauseImage)
			changed++
		case "restrict_oom_score_adj":
			lines[i] = "  restrict_oom_score_adj = true"
			changed++
		}
	}
	if changed != 2 {
		return "", fmt.Errorf("kind's containerd configuration has another shape than expected: sandbox_image and restrict_oom_score_adj, each once, not %d in all", changed)
	}
	return strings.Join(lines, "\n") + `
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  stats_collect_period = "10m"
[plugins."io.containerd.cri.v1.images"]
  stats_collect_period = 60
`, nil
}
