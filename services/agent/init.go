package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/services/agent/config"
	"github.com/portway/portway/services/agent/kernel"
)

// annotatedPatience bounds how long --init-only waits for the API server: the
// agent itself starts without one, too.
const annotatedPatience = 20 * time.Second

// initialize is all of --init-only: what the agent, with fewer rights, cannot do.
func initialize(ctx context.Context, opts *config.Options, modes []dataplane.Mode, machine kernel.Machine, log *slog.Logger) error {
	if opts.Proxy.Mode == "" {
		opts.Proxy.Mode = v1alpha1.ProxyMode(annotated(ctx, opts, modes, log))
	}
	if err := newChooser(opts, modes, machine, log).check(ctx); err != nil {
		return err
	}
	// After check, which had the modules loaded whose settings these are.
	setConntrack(machine, opts, log)
	for _, err := range prepare(opts) {
		log.Warn("A setting of the kernel stays as it is", "err", err)
	}
	return nil
}

// setConntrack makes the settings of conntrack that are configured, as far as it may.
func setConntrack(machine kernel.Machine, opts *config.Options, log *slog.Logger) {
	for _, err := range machine.SetConntrack(&opts.Proxy.Conntrack) {
		log.Warn("A setting of the kernel stays as it is", "err", err)
	}
}

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
