package agent

import (
	"context"
	"log/slog"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/services/agent/config"
)

// Run is the life of the agent. It returns when the context ends.
func Run(ctx context.Context, opts *config.Options, modes []dataplane.Mode, log *slog.Logger) error {
	return nil
}
