// Command portway is the agent that runs on each node and makes Services work
// there. It takes the flags and the configuration file of kube-proxy.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/services/agent"
	"github.com/portway/portway/services/agent/config"
	"github.com/portway/portway/services/agent/kernel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		complain(os.Stderr, err)
		os.Exit(1)
	}
}

// complain prints one line for each thing that is wrong.
func complain(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(w, "portway:", line)
	}
}

func newCommand() *cobra.Command {
	opts := config.NewOptions()
	var version bool
	cmd := &cobra.Command{
		Use:   "portway",
		Short: "Make Kubernetes Services work on this node",
		Long: `Portway makes the addresses of Kubernetes Services work on the node that it runs
on, as kube-proxy does. It takes kube-proxy's configuration file and flags.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				fmt.Fprintln(cmd.OutOrStdout(), "Portway", agent.Version())
				return nil
			}
			if err := opts.Complete(cmd.Flags()); err != nil {
				return err
			}
			if err := opts.Validate(agent.ModeNames(agent.Modes(nil, ipvs.Options{}))); err != nil {
				return err
			}
			return run(cmd.Context(), opts, agent.NewLogger(cmd.ErrOrStderr(), &opts.Proxy.Logging))
		},
	}
	cmd.Flags().SortFlags = true
	cmd.Flags().BoolVar(&version, "version", false, "Print the version, and exit.")
	opts.AddFlags(cmd.Flags())
	return cmd
}

func run(ctx context.Context, opts *config.Options, log *slog.Logger) error {
	for _, w := range opts.Warnings {
		log.Warn("Ignored configuration", "reason", w)
	}
	if opts.WriteConfigTo != "" {
		return opts.WriteConfig()
	}
	if err := agent.CheckPrivilege(); err != nil {
		return err
	}
	modes := agent.Modes(log, opts.IPVS())
	if opts.Cleanup {
		return agent.Cleanup(ctx, modes, kernel.Machine{Root: "/"}.Families())
	}
	return agent.Run(ctx, opts, modes, log)
}
