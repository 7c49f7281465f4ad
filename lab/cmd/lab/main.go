// Command lab makes a kind cluster whose Services are made by Portway, with or
// without a container registry, and takes it down again.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "lab",
		Short:         "A kind cluster whose Services are made by Portway",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.AddCommand(
		upCommand(),
		programsCommand(),
		simple("down", "Take the lab down; only its cache stays", (*lab.Lab).Down),
		simple("status", "Show what is up", (*lab.Lab).Status),
		simple("load", "Rebuild the agent from this checkout and roll it out", (*lab.Lab).Load),
		simple("test-image", "Put the image of the end-to-end tests on the nodes (made without a registry, they have it)", (*lab.Lab).TestImage),
		conformanceCommand(),
		simple("env", "Print what a shell needs to talk to the lab, for eval", (*lab.Lab).Env),
	)
	return cmd
}

func upCommand() *cobra.Command {
	var o cluster.Options
	var source string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the lab up, with the agent and a sample Service",
		Args:  cobra.NoArgs,
		RunE:  inLab(func(ctx context.Context, l *lab.Lab, _ []string) error { return l.Up(ctx, o, source) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Proxy, "proxy", cluster.Portway, "who makes Services work: portway, or kube-proxy to compare with")
	flags.StringVar(&o.Mode, "mode", "iptables", "the proxy's mode: iptables, userspace or ipvs (kube-proxy: iptables, ipvs or nftables)")
	flags.StringVar(&o.Family, "family", "ipv4", "ipv4, ipv6 or dual")
	flags.IntVar(&o.Workers, "nodes", 2, "worker nodes beside the control plane")
	flags.StringVar(&source, "source", lab.SourceAuto, "where node images come from: registry, modules (built here, nothing pulled), or auto")
	return cmd
}

func programsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "programs DIRECTORY",
		Short: "Make the programs of a control plane, and kube-proxy, and link to them in a directory",
		Args:  cobra.ExactArgs(1),
		RunE:  inLab(func(ctx context.Context, l *lab.Lab, args []string) error { return l.Programs(ctx, args[0]) }),
	}
}

func conformanceCommand() *cobra.Command {
	var o lab.ConformanceOptions
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Run upstream's specs about Services in the lab, and compare with the list of those that must pass",
		Args:  cobra.NoArgs,
		RunE:  inLab(func(ctx context.Context, l *lab.Lab, _ []string) error { return l.Conformance(ctx, o) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Label, "label", "", "only specs with this label, as [Conformance]; two workers suffice then")
	flags.BoolVar(&o.Frozen, "frozen", false, "without the agents, whose rules stay: what passes then proves nothing about them")
	flags.IntVar(&o.Procs, "procs", 3, "how many specs run at a time")
	return cmd
}

func simple(use, short string, run func(*lab.Lab, context.Context) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE:  inLab(func(ctx context.Context, l *lab.Lab, _ []string) error { return run(l, ctx) }),
	}
}

// inLab opens the lab for a command.
func inLab(run func(ctx context.Context, l *lab.Lab, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		l, err := lab.Open(cmd.OutOrStdout())
		if err != nil {
			return err
		}
		return run(cmd.Context(), l, args)
	}
}
