package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/products"
	"github.com/portway/portway/lab/internal/step"
)

// TestImage puts the image of the end-to-end tests' clients and servers on the
// nodes, unless they were made with it.
func (l *Lab) TestImage(ctx context.Context) error {
	unlock, err := l.hold()
	if err != nil {
		return err
	}
	defer unlock()
	if l.state.Offline {
		fmt.Fprintf(l.Out, "The nodes hold %s already.\n", products.AgnhostImage)
		return nil
	}
	return step.Run(ctx, l.Out, []step.Step{{Name: "Build the tests' image", Run: l.testImage}})
}

func (l *Lab) testImage(ctx context.Context, note func(string)) error {
	agnhost, err := l.maker().Kubernetes(ctx, "test/images/agnhost", note)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "portway-agnhost-")
	if err != nil {
		return fmt.Errorf("test image: %w", err)
	}
	defer os.RemoveAll(work)
	// The directory with the program is the whole context of the build.
	build := l.docker().Cmd("build", "--tag="+products.AgnhostImage,
		"--file="+filepath.Join(l.repo, "lab", "images", "agnhost", "Dockerfile"), filepath.Dir(agnhost))
	archive := filepath.Join(work, "image.tar")
	if _, err := l.dockerBuild(ctx, build, products.AgnhostImage, archive, note); err != nil {
		return fmt.Errorf("test image: %w", err)
	}
	return l.loadArchive(ctx, archive, note)
}
