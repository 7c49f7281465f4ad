package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/kind/pkg/apis/config/defaults"
	kind "sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/log"

	"github.com/portway/portway/lab/internal/docker"
)

// DefaultImage is the node image that kind would pull.
func DefaultImage() string { return defaults.Image }

// Kind is the kind library against one Docker daemon. The library runs the
// docker program with this process's environment, so only one daemon can be
// used by a process.
type Kind struct {
	docker   docker.Client
	provider *kind.Provider
}

// NewKind returns the library, telling note what it does.
func NewKind(d docker.Client, note func(string)) (Kind, error) {
	if d.Host != "" {
		if err := os.Setenv("DOCKER_HOST", d.Host); err != nil {
			return Kind{}, fmt.Errorf("DOCKER_HOST: %w", err)
		}
	}
	logger := logger{note: note}
	return Kind{docker: d, provider: kind.NewProvider(kind.ProviderWithDocker(), kind.ProviderWithLogger(logger))}, nil
}

// Exists reports whether the cluster's containers are there.
func (k Kind) Exists() (bool, error) {
	names, err := k.provider.List()
	if err != nil {
		return false, fmt.Errorf("list of kind clusters: %w", err)
	}
	return slices.Contains(names, Name), nil
}

// Create makes the cluster and writes its kubeconfig. A failed cluster is
// deleted again.
func (k Kind) Create(ctx context.Context, o Options, m Machine, kubeconfig string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	err := k.provider.Create(Name, kind.CreateWithV1Alpha4Config(Config(o, m)), kind.CreateWithKubeconfigPath(kubeconfig),
		kind.CreateWithDisplayUsage(false), kind.CreateWithDisplaySalutation(false))
	if err != nil {
		return fmt.Errorf("kind cluster %s: %w", Name, err)
	}
	return nil
}

// Delete removes the cluster's containers, their volumes and its kubeconfig
// entry.
func (k Kind) Delete(kubeconfig string) error {
	if err := k.provider.Delete(Name, kubeconfig); err != nil {
		return fmt.Errorf("kind cluster %s: %w", Name, err)
	}
	return nil
}

// NodeNames are the containers of the cluster's nodes.
func (k Kind) NodeNames() ([]string, error) {
	nodes, err := k.provider.ListInternalNodes(Name)
	if err != nil {
		return nil, fmt.Errorf("nodes of kind cluster %s: %w", Name, err)
	}
	var names []string
	for _, n := range nodes {
		names = append(names, n.String())
	}
	slices.Sort(names)
	return names, nil
}

// logger passes on what kind says at its first level.
type logger struct{ note func(string) }

func (l logger) Warn(message string)              { l.note("kind: " + message) }
func (l logger) Warnf(format string, args ...any) { l.note("kind: " + fmt.Sprintf(format, args...)) }
func (l logger) Error(message string)             { l.note("kind: " + message) }
func (l logger) Errorf(format string, args ...any) {
	l.note("kind: " + fmt.Sprintf(format, args...))
}

func (l logger) V(level log.Level) log.InfoLogger {
	if level > 0 {
		return quiet{}
	}
	return l
}
func (l logger) Info(message string)              { l.note(strings.TrimSpace(message)) }
func (l logger) Infof(format string, args ...any) { l.Info(fmt.Sprintf(format, args...)) }
func (l logger) Enabled() bool                    { return true }

type quiet struct{}

func (quiet) Info(string)          {}
func (quiet) Infof(string, ...any) {}
func (quiet) Enabled() bool        { return false }
