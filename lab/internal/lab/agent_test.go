package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/portway/portway/lab/internal/products"
)

func TestOverlay(t *testing.T) {
	root := t.TempDir()
	l := &Lab{dir: filepath.Join(root, "state", "portway", "lab"), agentID: "0123abcd"}
	mode := filepath.Join(root, "repo", "services", "agent", "deploy", "overlays", "iptables")
	dir, err := l.writeOverlay(mode, "fc00::2")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Resources          []string
		Images             []struct{ NewName, NewTag string }
		ConfigMapGenerator []struct{ Literals []string }
		Patches            []struct{ Patch string }
	}
	if err := yaml.UnmarshalStrict(raw, &map[string]any{}); err != nil {
		t.Fatalf("%v in\n%s", err, raw)
	}
	if err := yaml.Unmarshal(raw, &k); err != nil {
		t.Fatal(err)
	}
	if filepath.IsAbs(k.Resources[0]) || filepath.Join(dir, k.Resources[0]) != mode {
		t.Errorf("resource %q is not the way from %s to %s", k.Resources[0], dir, mode)
	}
	if got := k.ConfigMapGenerator[0].Literals[0]; got != "KUBERNETES_SERVICE_HOST=fc00::2" {
		t.Errorf("API server is %q", got)
	}
	if got := k.Images[0]; got.NewName+":"+got.NewTag != products.AgentImage {
		t.Errorf("image is %+v", got)
	}
	if !strings.Contains(k.Patches[0].Patch, "0123abcd") {
		t.Errorf("patch lacks the image's id: %s", k.Patches[0].Patch)
	}
}
