package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/portway/portway/modules/dataplane/answer"
	"github.com/portway/portway/services/ctl"
)

// errUnknown is told by the answer itself.
var errUnknown = errors.New("not everything could be looked at")

func audit(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "audit",
		Short: "How the kernel differs from what Services want",
		Long:  "Read back everything in the kernel that is ours, and list each difference from what Services want, with the object and the Service. Nothing is changed.",
		Example: `  portwayctl audit
  portwayctl audit --from=node.tar
  portwayctl audit -o json | jq -r '.planes[].differences[].service'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asker, err := s.asker()
			if err != nil {
				return err
			}
			a, err := asker.Audit(cmd.Context())
			if err != nil {
				return err
			}
			return s.audited(cmd, a, "as it should be")
		},
	}
}

func (s *settings) audited(cmd *cobra.Command, a answer.Audit, clean string) error {
	err := s.print(cmd, a, func() { ctl.PrintAudit(cmd.OutOrStdout(), a, clean) })
	switch {
	case err != nil:
		return err
	case a.Failed():
		return errUnknown
	case !a.Clean():
		return errDiffers
	}
	return nil
}

func resync(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "resync",
		Short: "Have the agent repair the kernel now",
		Long: `Have the agent of this node read back everything that is ours and repair what
differs at once, instead of at the end of its sync period. What it repaired is
listed.`,
		Example: `  portwayctl resync`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := ctl.NewClient(s.socket).Resync(cmd.Context())
			if err != nil {
				return err
			}
			err = s.audited(cmd, a, "nothing to repair")
			if errors.Is(err, errDiffers) {
				return nil // it does not any more
			}
			return err
		},
	}
}
