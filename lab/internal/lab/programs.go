package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/step"
)

// Programs puts links to the programs of a control plane, and to kube-proxy, into
// a directory, for benchmarks. They are made from Go modules; no lab need be up.
func (l *Lab) Programs(ctx context.Context, dir string) error {
	return step.Run(ctx, l.Out, []step.Step{{Name: "Make Kubernetes and etcd", Run: func(ctx context.Context, note func(string)) error {
		programs, err := l.maker().ControlPlane(ctx, note)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("directory for programs: %w", err)
		}
		for name, program := range programs {
			if err := replaceLink(program, filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("program %s: %w", name, err)
			}
		}
		return nil
	}}})
}

// replaceLink makes link lead to target, whatever it was.
func replaceLink(target, link string) error {
	if err := os.RemoveAll(link); err != nil {
		return err
	}
	return os.Symlink(target, link)
}
