package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/portway/portway/modules/dataplane/answer"
	"github.com/portway/portway/services/ctl"
)

func explain(s *settings) *cobra.Command {
	var iface string
	var steps bool
	cmd := &cobra.Command{
		Use:   "explain PROTOCOL SOURCE DESTINATION",
		Short: "What should become of a new flow, what does, and whether they agree",
		Long: `Follow a new flow through the kernel as it is, naming each rule, set, virtual
server and socket on the way, beside what should become of it and why each
endpoint of the Service is in or out.

PROTOCOL is tcp, udp, sctp, icmp or icmpv6. SOURCE is an address, with or
without a port, a name, or the word node for what this node sends itself.
DESTINATION is an address with a port, or a name. Names are

  pod/NAMESPACE/NAME   node/NAME   svc/NAMESPACE/NAME

with :PORT behind them; a port of a Service may be called by its name, and left
out if there is only one.`,
		Example: `  # from a pod to a Service
  portwayctl explain tcp 10.244.1.7 10.96.0.10:53
  portwayctl explain udp pod/shop/client svc/kube-system/kube-dns:dns

  # from this node to a NodePort, without the rules on the way
  portwayctl explain tcp node 192.0.2.10:30080 --steps=false

  # from outside, by the interface that is not the one of the route back
  portwayctl explain tcp 203.0.113.9 198.51.100.1:443 --iface eth1

  # elsewhere, from what "portwayctl dump" saved on the node
  portwayctl explain tcp 10.244.1.7 svc/shop/web --from=node.tar --from=pods.yaml

  # does it agree? for a script
  portwayctl explain tcp node svc/default/kubernetes -o json | jq .planes[0].agree`,
		Args: cobra.ExactArgs(3),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completions(len(args)), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			asker, err := s.asker()
			if err != nil {
				return err
			}
			q, err := ctl.Resolve(cmd.Context(), asker, answer.Query{
				Protocol: args[0], Source: args[1], Destination: args[2], Interface: iface,
			})
			if err != nil {
				return err
			}
			e, err := asker.Explain(cmd.Context(), q)
			if err != nil {
				return err
			}
			if err := s.print(cmd, e, func() { ctl.PrintExplanation(cmd.OutOrStdout(), e, steps) }); err != nil {
				return err
			}
			return explained(e)
		},
	}
	cmd.Flags().StringVar(&iface, "iface", "", "interface by which the flow reaches the node; default that of the route to the source")
	cmd.Flags().BoolVar(&steps, "steps", true, "name each rule, set and server on the way")
	return cmd
}

// explained is the end of the program that an explanation gives.
func explained(e answer.Explanation) error {
	for _, p := range e.Planes {
		if p.Error != "" {
			return fmt.Errorf("%s: %s", p.Plane, p.Error)
		}
	}
	if !e.Agree() {
		return errDiffers
	}
	return nil
}

// completions are how the words of explain may begin.
func completions(word int) []string {
	switch word {
	case 0:
		return []string{"tcp", "udp", "sctp", "icmp", "icmpv6"}
	case 1:
		return []string{"node", "node/", "pod/", "svc/"}
	case 2:
		return []string{"svc/", "node/", "pod/"}
	}
	return nil
}
