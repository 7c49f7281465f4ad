// Command portwayctl asks the agent of this node what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/portway/portway/services/ctl"
)

// errDiffers ends the program with code 2: it could look, and what it saw is
// not as it should be.
var errDiffers = errors.New("the kernel does not do what it should")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, errDiffers):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "portwayctl:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var socket string
	root := &cobra.Command{
		Use:           "portwayctl",
		Short:         "Ask the Portway agent of this node",
		Long:          "Ask the Portway agent of this node. The exit code is 0 if all is as it should be, 2 if not, and 1 if that could not be found out.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&socket, "socket", "/run/portway/portway.sock", "Where the agent listens.")
	root.AddCommand(explain(&socket), audit(&socket))
	return root
}

func explain(socket *string) *cobra.Command {
	var f ctl.Flow
	var steps bool
	cmd := &cobra.Command{
		Use:     "explain DESTINATION[:PORT]",
		Short:   "What should become of a new connection, what does, and whether they agree",
		Example: "  portwayctl explain 10.96.0.10:53 --proto udp --src 10.244.1.7 --iface veth1234\n  portwayctl explain 192.0.2.10:30080",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Destination = args[0]
			e, err := ctl.NewClient(*socket).Explain(cmd.Context(), f)
			if err != nil {
				return err
			}
			if !ctl.PrintExplanation(cmd.OutOrStdout(), e, steps) {
				return errDiffers
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&f.Protocol, "proto", "tcp", "tcp, udp, sctp, icmp or icmpv6.")
	cmd.Flags().StringVar(&f.Source, "src", "", "Source address, with or without a port; this node if left out.")
	cmd.Flags().StringVar(&f.Interface, "iface", "", "Interface by which the packet reaches the node; none if the node sends it.")
	cmd.Flags().BoolVar(&steps, "steps", true, "Name each rule, set and server on the way.")
	return cmd
}

func audit(socket *string) *cobra.Command {
	return &cobra.Command{
		Use:   "audit",
		Short: "How the kernel differs from what the Services want",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := ctl.NewClient(*socket).Audit(cmd.Context())
			if err != nil {
				return err
			}
			if !ctl.PrintAudit(cmd.OutOrStdout(), a) {
				return errDiffers
			}
			return nil
		},
	}
}
