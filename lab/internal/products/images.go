package products

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/image"
)

// Names of the images that the lab makes for pods.
const (
	// With a host part, so that nobody completes it: as it is, it can be in an
	// archive of the OCI layout. There is no such host.
	AgentImage   = "portway.lab/agent:dev"
	AgnhostImage = "portway-lab/agnhost:dev"
	NginxImage   = "nginx:latest"
)

// searchPath finds programs in Debian's directories and in ours.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// binaries are the directories with the built programs.
type binaries struct {
	kubernetes string
	others     map[string]string // by programs.name
	pause      string            // the program itself
	labexec    string            // likewise
}

// requiredImages asks kubeadm which images it wants, and under which names.
func (m Maker) requiredImages(ctx context.Context, kubeadm string) ([]string, error) {
	out, err := m.Run.Run(ctx, command.New(kubeadm, "config", "images", "list", "--kubernetes-version", KubernetesVersion))
	if err != nil {
		return nil, fmt.Errorf("images that kubeadm wants: %w", err)
	}
	return strings.Fields(out), nil
}

// layers writes layers to files of one directory.
type layers struct{ dir string }

func (l layers) write(name string, entries ...image.Entry) (file string, err error) {
	f, err := os.Create(filepath.Join(l.dir, name+".tar"))
	if err != nil {
		return "", fmt.Errorf("layer %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := image.WriteLayer(f, entries); err != nil {
		return "", fmt.Errorf("layer %s: %w", name, err)
	}
	return f.Name(), nil
}

// controlPlane makes the images that kubeadm wants, each from one static
// program under the name that kubeadm gives it.
func controlPlane(l layers, b binaries, podRootfs string, required []string) ([]image.Image, error) {
	var images []image.Image
	for _, name := range required {
		program := strings.Split(path.Base(name), ":")[0]
		img := image.Image{Name: name, Env: []string{searchPath}}
		from, to := filepath.Join(b.kubernetes, program), "/usr/local/bin/"+program
		switch program {
		case "etcd":
			from = filepath.Join(b.others["etcd"], "etcd")
		case "coredns":
			from, to = filepath.Join(b.others["coredns"], "coredns"), "/coredns"
			img.Entrypoint = []string{to}
		case "pause":
			from, to = b.pause, "/pause"
			img.Entrypoint = []string{to}
		case "kube-proxy":
			img.Layers = []string{podRootfs} // it executes iptables
		}
		layer, err := l.write("image-"+program, image.Entry{Path: to, From: from, Mode: 0o755})
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		img.Layers = append(img.Layers, layer)
		images = append(images, img)
	}
	return images, nil
}

// podImages makes the images of the sample and of the tests. They are in the
// node image, so that a new cluster has them at once.
func podImages(l layers, b binaries, podRootfs string) ([]image.Image, error) {
	agnhost, err := l.write("image-agnhost", image.Entry{
		Path: "/usr/local/bin/agnhost", From: filepath.Join(b.kubernetes, "agnhost"), Mode: 0o755,
	}, image.Entry{Path: "/agnhost", Link: "/usr/local/bin/agnhost"})
	if err != nil {
		return nil, err
	}
	// Requests go to the pod's log, as in the nginx image that everybody knows.
	nginx, err := l.write("image-nginx",
		image.Entry{Path: "/var/log/nginx/access.log", Link: "/dev/stdout"},
		image.Entry{Path: "/var/log/nginx/error.log", Link: "/dev/stderr"})
	if err != nil {
		return nil, err
	}
	return []image.Image{
		{Name: NginxImage, Layers: []string{podRootfs, nginx}, Env: []string{searchPath}, Entrypoint: []string{"nginx", "-g", "daemon off;"}},
		{Name: AgnhostImage, Layers: []string{podRootfs, agnhost}, Env: []string{searchPath}, Entrypoint: []string{"/agnhost"}},
	}, nil
}

// archive is the images as `ctr images import` and `docker load` read them.
func archive(images []image.Image) io.Reader {
	r, w := io.Pipe()
	go func() { w.CloseWithError(image.Write(w, images...)) }()
	return r
}
