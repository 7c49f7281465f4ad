package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/portway/portway/services/ctl"
)

func dump(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "dump FILE",
		Short: "Save what is needed to explain and audit this node elsewhere",
		Long: `Save what is needed to explain and audit this node elsewhere, with --from: a tar
archive (- writes it to the output) of

  node.json                       what the agent knows of the node and its configuration
  objects.json                    Services, EndpointSlices, ServiceCIDRs and the Node
  iptables.save, ip6tables.save   the rules, as iptables-save prints them
  ipset.save                      the sets, as ipset save prints them
  relay.json                      what the agent listens for

and in the ipvs mode

  ipvsadm.save                    virtual and real servers, as ipvsadm -Sn prints them
  ip_vs                           /proc/net/ip_vs, which counts connections
  kube-ipvs0.save                 local addresses, as ip route show table local prints them
  sysctl.save                     settings, as sysctl prints them

Anything of it may be had by other means: --from also takes a directory with
files of these names, and any *.yaml or *.json that kubectl get -o yaml printed.
What could not be saved is told, and the exit code is 2.`,
		Example: `  portwayctl dump node.tar
  portwayctl dump - | tar -t`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var archive bytes.Buffer
			saveErr := ctl.Save(cmd.Context(), &archive, ctl.NewClient(s.socket), ctl.Kubernetes{Kubeconfig: s.kubeconfig})
			if args[0] == "-" {
				_, err := cmd.OutOrStdout().Write(archive.Bytes())
				return errors.Join(saveErr, err)
			}
			if err := os.WriteFile(args[0], archive.Bytes(), 0o600); err != nil {
				return fmt.Errorf("save: %w", err)
			}
			return saveErr
		},
	}
}
