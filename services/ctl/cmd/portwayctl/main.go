// Command portwayctl says why a packet goes where it goes, and whether the
// kernel is as Services want it.
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

// errDiffers ends the program with code 1: it could look, and what it saw is
// not as it should be. Whatever kept it from looking is code 2.
var errDiffers = errors.New("the kernel does not do what it should")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, errDiffers):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "portwayctl:", err)
		os.Exit(2)
	}
}

// settings are what every command may be told.
type settings struct {
	socket, kubeconfig, output string
	from                       []string
}

func newCommand() *cobra.Command {
	s := new(settings)
	root := &cobra.Command{
		Use:   "portwayctl",
		Short: "Say why a packet goes where it goes, and whether the kernel is as Services want it",
		Long: `Say why a packet goes where it goes, and whether the kernel is as Services want
it: on this node, by asking its Portway agent, or elsewhere from what was saved.

The exit code is 0 if all is as it should be, 1 if it is not, and 2 if that
could not be found out.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if s.output != "text" && s.output != "json" {
				return fmt.Errorf("--output is %q: want text or json", s.output)
			}
			return nil
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&s.socket, "socket", "/run/portway/portway.sock", "where the agent listens")
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "how to reach the API server, to look up pods and nodes by name; default as for kubectl")
	flags.StringVarP(&s.output, "output", "o", "text", "how to answer: text or json")
	flags.StringArrayVar(&s.from, "from", nil, "answer from what was saved (portwayctl dump, or files of those names) instead of by the agent; may be repeated")
	words := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp
	}
	if err := root.RegisterFlagCompletionFunc("output", words); err != nil {
		panic(err) // there is no such flag
	}
	root.AddCommand(explain(s), audit(s), resync(s), dump(s))
	return root
}

func (s *settings) asker() (ctl.Asker, error) {
	if len(s.from) > 0 {
		return ctl.OpenSaved(s.from...)
	}
	return ctl.Live{Client: ctl.NewClient(s.socket), Kubernetes: ctl.Kubernetes{Kubeconfig: s.kubeconfig}}, nil
}

// print writes an answer as it was asked for.
func (s *settings) print(cmd *cobra.Command, answer any, text func()) error {
	if s.output == "json" {
		return ctl.PrintJSON(cmd.OutOrStdout(), answer)
	}
	text()
	return nil
}
