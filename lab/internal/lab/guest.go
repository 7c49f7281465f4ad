package lab

import (
	"context"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/machine"
)

// addGuest adds a node with a kernel of its own, on which the agent runs in the
// lab's mode. Nodes that share this machine's kernel run what that can.
func (u *up) addGuest(ctx context.Context, note func(string)) error {
	program, modules, err := machine.UserModeLinux(ctx, u.run)
	if err != nil {
		return err
	}
	processor, err := machine.LastProcessor()
	if err != nil {
		return err
	}
	image, err := u.docker().Output(ctx, "inspect", "--format={{.Config.Image}}", cluster.Name+"-control-plane")
	if err != nil {
		return err
	}
	g := cluster.Guest{
		Docker: u.docker(), Kube: u.kubectl(), Image: image, Family: u.state.Options.Family,
		Kernel: cluster.Kernel{Program: program, Modules: modules, Processor: processor},
	}
	note("booting " + cluster.GuestName)
	if err := g.Start(ctx); err != nil {
		return err
	}
	note("joining " + cluster.GuestName)
	return g.Join(ctx, u.state.Options.Mode)
}
