package products

import (
	"context"
	"path/filepath"
)

// ControlPlane builds what a control plane of plain processes needs, and
// kube-proxy to compare with, and returns the programs by name.
func (m Maker) ControlPlane(ctx context.Context, note func(string)) (map[string]string, error) {
	kubernetes, err := m.build(ctx, kubernetesPrograms(), note)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-proxy"} {
		found[name] = filepath.Join(kubernetes, name)
	}
	for _, p := range nodePrograms() {
		if p.name != "etcd" {
			continue
		}
		dir, err := m.build(ctx, p, note)
		if err != nil {
			return nil, err
		}
		found["etcd"] = filepath.Join(dir, p.output)
	}
	return found, nil
}
