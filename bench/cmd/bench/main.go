// Command bench measures Portway and stock kube-proxy side by side.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Portway and kube-proxy side by side",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.AddCommand(scaleCommand(), reportCommand(), guestCommand())
	return cmd
}
