package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/services/agent/config"
)

// annotatedPatience bounds how long --init-only waits for the API server: the
// agent itself starts without one, too.
const annotatedPatience = 20 * time.Second

// annotated is the mode that the Node's annotation asks for, for --init-only: the
// modules and settings of that mode are beyond what the agent itself may change.
// Where it cannot be known it is blank, as if nothing were asked for.
func annotated(ctx context.Context, opts *config.Options, modes []dataplane.Mode, log *slog.Logger) string {
	mode, err := readAnnotation(ctx, opts)
	switch {
	case err != nil:
		log.Warn("Preparing for the mode that is configured: whether the Node asks for another one is not known", "err", err)
		return ""
	case !slices.Contains(ModeNames(modes), mode):
		return "" // the agent says so
	}
	return mode
}

func readAnnotation(ctx context.Context, opts *config.Options) (string, error) {
	name, err := opts.NodeName()
	if err != nil {
		return "", err
	}
	client, err := newClient(opts)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, annotatedPatience)
	defer cancel()
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get Node %s: %w", name, err)
	}
	return node.Annotations[modeAnnotation], nil
}
