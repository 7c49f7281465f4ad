package products

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/image"
)

// Suite is upstream's end-to-end tests of Kubernetes.
type Suite struct {
	Tests   string // the program that holds the specs
	Ginkgo  string // the program that runs it in several processes
	servers string // the directory with the programs of its images
}

// suiteTests and suitePrograms are pinned by one module, whose versions are those
// of Kubernetes' own programs: packages that are compiled are shared.
func suiteTests() programs {
	return programs{name: "conformance", main: []string{"k8s.io/kubernetes/test/e2e"}, test: true, output: "e2e.test", ldflags: kubernetesStamp}
}

func suitePrograms() programs {
	return programs{
		name: "conformance",
		main: []string{"github.com/onsi/ginkgo/v2/ginkgo", "k8s.io/kubernetes/test/images/" + regressionServer},
	}
}

// regressionServer answers one spec's client with packets out of its window.
const regressionServer = "regression-issue-74839"

// Suite compiles upstream's tests.
func (m Maker) Suite(ctx context.Context, note func(string)) (Suite, error) {
	tests := suiteTests()
	note("compiling " + tests.output)
	dir, err := m.build(ctx, tests, note)
	if err != nil {
		return Suite{}, err
	}
	servers, err := m.build(ctx, suitePrograms(), note)
	return Suite{
		Tests: filepath.Join(dir, tests.output), Ginkgo: filepath.Join(servers, "ginkgo"), servers: servers,
	}, err
}

// SuiteImages makes the images that the specs about Services name, above the
// root file system of pods that the nodes have, and returns their archive, which
// lacks that layer.
func (m Maker) SuiteImages(ctx context.Context, s Suite, rootfs string, note func(string)) (string, error) {
	listed, err := m.Run.Run(ctx, command.New(s.Tests, "--list-images"))
	if err != nil {
		return "", fmt.Errorf("images that %s wants: %w", s.Tests, err)
	}
	names := strings.Fields(listed)
	slices.Sort(names) // printed in any order
	b := binaries{}
	if b.kubernetes, err = m.build(ctx, kubernetesPrograms(), note); err != nil {
		return "", err
	}
	if b.pause, err = m.Own(ctx, "pause", note); err != nil {
		return "", err
	}
	sources, err := m.moduleDir(ctx, filepath.Join(m.Lab, "build", suiteTests().name), "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	key := new(cache.Key).Add("recipe", suiteRecipe).Add("images", strings.Join(names, " ")).Add("rootfs", filepath.Base(rootfs)).
		Add("kubernetes", filepath.Base(b.kubernetes)).Add("servers", filepath.Base(s.servers)).
		Add("pause", filepath.Base(filepath.Dir(b.pause)))
	return m.Store.Get(ctx, "conformance-images.tar", key, func(out string) (err error) {
		work, err := m.workDir("conformance-images")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		images, err := suiteImages(layers{work}, b, s.servers, sources, rootfs)
		if err != nil {
			return err
		}
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		return image.WriteAbove(f, named(images, names)...)
	})
}

// suiteRecipe changes when suiteImages puts something else into the images.
const suiteRecipe = "2"

// suiteImages are the images by what upstream calls them, less host and tag.
func suiteImages(l layers, b binaries, servers, sources, rootfs string) (map[string]image.Image, error) {
	pods, err := podImages(l, b, rootfs)
	if err != nil {
		return nil, err
	}
	porter := filepath.Join(sources, "test", "images", "agnhost", "porter")
	added := map[string][]image.Entry{
		"agnhost": {
			{Path: "/agnhost-2", Link: "/agnhost"},
			{Path: "/localhost.crt", From: filepath.Join(porter, "localhost.crt")},
			{Path: "/localhost.key", From: filepath.Join(porter, "localhost.key")},
			{Path: "/uploads/", Mode: 0o755},
		},
		"pause":          {{Path: "/pause", From: b.pause, Mode: 0o755}},
		regressionServer: {{Path: "/" + regressionServer, From: filepath.Join(servers, regressionServer), Mode: 0o755}},
	}
	images := map[string]image.Image{}
	for _, pod := range pods {
		images[strings.Split(path.Base(pod.Name), ":")[0]] = pod
	}
	for _, shell := range []string{"busybox", "distroless-iptables", "glibc-dns-testing", "pause", regressionServer} {
		images[shell] = image.Image{Layers: []string{rootfs}, Env: []string{searchPath}}
	}
	agnhost := images["agnhost"]
	agnhost.Cmd = []string{"pause"} // of some pods nothing is asked but to be there
	images["agnhost"] = agnhost
	for name, entries := range added {
		layer, err := l.write("suite-"+name, entries...)
		if err != nil {
			return nil, err
		}
		img := images[name]
		img.Layers = append(img.Layers, layer)
		if img.Entrypoint == nil {
			img.Entrypoint = []string{"/" + name}
		}
		images[name] = img
	}
	return images, nil
}

// named are those of the images that upstream lists, under the names there.
func named(images map[string]image.Image, listed []string) []image.Image {
	var out []image.Image
	for _, name := range listed {
		if img, ok := images[strings.Split(path.Base(name), ":")[0]]; ok {
			img.Name = name
			out = append(out, img)
		}
	}
	return out
}
