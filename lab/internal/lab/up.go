package lab

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/machine"
	"github.com/portway/portway/lab/internal/ociruntime"
	"github.com/portway/portway/lab/internal/products"
	"github.com/portway/portway/lab/internal/step"
)

// Where the node image comes from.
const (
	SourceAuto     = "auto"     // a registry if one can be reached
	SourceRegistry = "registry" // kind's own image
	SourceModules  = "modules"  // Go modules and Debian packages
)

// up is one run of `lab up`.
type up struct {
	*Lab
	source string
	node   products.Node
	image  string // of the nodes; empty: kind's own
	reuse  bool   // the cluster is there already
}

// Up brings the lab up, or what is missing of it.
func (l *Lab) Up(ctx context.Context, o cluster.Options, source string) error {
	if err := o.Validate(); err != nil {
		return err
	}
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	u := &up{Lab: l, source: source}
	if err := step.Run(ctx, l.Out, []step.Step{
		{Name: "Look at this machine", Run: func(ctx context.Context, _ func(string)) error { return u.plan(ctx, o) }},
	}); err != nil {
		return err
	}
	if err := step.Run(ctx, l.Out, u.steps()); err != nil {
		return fmt.Errorf("%w\n  what is up already stays: make lab-up goes on from here, make lab-down takes it down", err)
	}
	return l.printCommands(ctx)
}

// steps are the whole procedure for what plan decided.
func (u *up) steps() []step.Step {
	var steps []step.Step
	if u.state.Offline {
		steps = append(steps, step.Step{Name: "Install missing Debian packages", Run: u.install})
		if u.state.OwnDaemon {
			steps = append(steps, step.Step{Name: "Start the lab's own Docker", Run: u.startDaemon})
		}
		if !u.reuse {
			steps = append(steps, u.maker().Prepare(&u.node)...)
			steps = append(steps, step.Step{Name: "Make the node image", Run: u.nodeImage})
		}
		steps = append(steps, step.Step{Name: "Keep the lab's traffic on this machine", Run: u.guard})
	} else {
		steps = append(steps, step.Step{Name: "Find kubectl", Run: u.findKubectl})
	}
	if !u.reuse {
		steps = append(steps, step.Step{Name: "Create the kind cluster", Run: u.create})
	}
	if u.state.Offline {
		steps = append(steps, step.Step{Name: "Connect the pod networks", Run: u.podNetwork})
	}
	if u.state.Guest {
		// After the others are ready, so that the cluster's DNS is on them.
		steps = append(steps,
			step.Step{Name: "Add a node whose kernel has IPVS", Run: u.addGuest},
			step.Step{Name: "Connect its pod network", Run: u.podNetwork})
	}
	if u.state.Options.Proxy == cluster.Portway {
		steps = append(steps, u.agentSteps()...)
	}
	return append(steps,
		step.Step{Name: "Wait for the nodes and the cluster's DNS", Run: u.waitReady},
		step.Step{Name: "Deploy the sample", Run: u.sample},
		step.Step{Name: "Ask the sample from a pod and from a node", Run: u.check},
	)
}

// plan decides how to go on and refuses what cannot work, before anything is
// changed.
func (u *up) plan(ctx context.Context, o cluster.Options) error {
	guest := o.Mode == "ipvs" && !machine.HasIPVS(ctx, u.run)
	if guest && o.Proxy != cluster.Portway {
		return fmt.Errorf("this kernel has no IPVS (module ip_vs), and nodes of kind share it: choose another --mode for %s here", o.Proxy)
	}
	before, err := u.load()
	switch {
	case err == nil:
		err = u.resume(before, o, guest)
	case errors.Is(err, errDown):
		err = u.start(ctx, o)
	}
	if err != nil {
		return err
	}
	u.state.Guest = guest
	if guest && !u.state.Offline {
		return errors.New("this kernel has no IPVS (module ip_vs), and the node with a kernel that has it is made from the lab's own node image: use --source modules here")
	}
	if o.Proxy == cluster.Portway {
		if _, err := os.Stat(u.manifests()); err != nil {
			return fmt.Errorf("this checkout has no manifests for %s mode: %w", o.Mode, err)
		}
	}
	return nil
}

// start decides how a new lab is made.
func (u *up) start(ctx context.Context, o cluster.Options) error {
	u.state = State{Options: o}
	if u.docker().Usable(ctx) {
		return u.planOnDocker(ctx)
	}
	if u.source == SourceRegistry {
		return errors.New("no Docker answers, and --source registry needs one: start Docker, or join its group, and check with: docker version")
	}
	if !machine.Root() {
		return errors.New("no Docker answers, and only root can start one for the lab: start Docker or join its group (check with: docker version), or run this as root")
	}
	u.state.Offline, u.state.OwnDaemon, u.state.Bridge = true, true, networkBridge
	return nil
}

// planOnDocker uses a Docker that is there already, and leaves it alone
// otherwise.
func (u *up) planOnDocker(ctx context.Context) error {
	if u.source != SourceModules {
		image := cluster.DefaultImage()
		if u.docker().HasImage(ctx, image) || u.docker().CanPull(ctx, image) {
			return nil
		}
		if u.source == SourceRegistry {
			return fmt.Errorf("no registry answers for kind's node image; see why with: docker pull %s", image)
		}
	}
	if !machine.Root() {
		return errors.New("no registry can be reached, and making a node image and keeping its traffic inside needs root: run this as root")
	}
	u.state.Offline = true
	return nil
}

// resume goes on with the lab of an earlier run, which must be the same one but for
// the mode of its agents.
func (u *up) resume(before State, o cluster.Options, guest bool) error {
	u.state = before
	u.state.Options = o
	if before.OwnDaemon && !u.daemon("").Running() {
		return nil // the machine was restarted: the steps start all again
	}
	k, err := u.kind(ignore)
	if err != nil {
		return err
	}
	exists, err := k.Exists()
	if err != nil {
		return err
	}
	if exists && (before.Guest != guest || !before.Options.CanBecome(o)) {
		return fmt.Errorf("the lab is up with %s: make lab-down first", before.Options)
	}
	u.reuse = exists
	return nil
}

func ignore(string) {}

func (u *up) install(ctx context.Context, note func(string)) error {
	return machine.Install(ctx, u.run, machine.Missing(u.state.OwnDaemon, u.state.Guest), note)
}

// startDaemon remembers what the machine is like, bars the way out, and only
// then starts Docker.
func (u *up) startDaemon(ctx context.Context, note func(string)) error {
	_, lacking, err := ociruntime.Bounding()
	if err != nil {
		return err
	}
	runtime := ""
	if lacking {
		if runtime, err = u.maker().Own(ctx, "labrunc", note); err != nil {
			return err
		}
	}
	if !u.daemon("").Running() {
		if u.state.Saved, err = u.host.Save(ctx); err != nil {
			return err
		}
	}
	if err := u.save(); err != nil {
		return err
	}
	if err := u.host.Guard(ctx, u.state.Bridge); err != nil {
		return err
	}
	return u.daemon(runtime).Start(ctx)
}

func (u *up) nodeImage(ctx context.Context, note func(string)) (err error) {
	u.state.Kubectl, u.state.PodRootfs = u.node.Kubectl, u.node.PodRootfs
	u.image, err = u.node.Image(ctx, u.maker(), u.docker(), note)
	return err
}

// guard is for the bridge that the nodes will be on: on a Docker that was there
// already it can have any name.
func (u *up) guard(ctx context.Context, _ func(string)) error {
	bridge, err := u.docker().EnsureNetwork(ctx, networkName, networkBridge, networkCIDR6)
	if err != nil {
		return err
	}
	u.state.Bridge = bridge
	if err := u.save(); err != nil {
		return err
	}
	return u.host.Guard(ctx, bridge)
}

func (u *up) podNetwork(ctx context.Context, _ func(string)) error {
	return cluster.PodNetwork(ctx, u.kubectl(), u.docker())
}

func (u *up) create(ctx context.Context, note func(string)) error {
	k, err := u.kind(note)
	if err != nil {
		return err
	}
	if err := u.save(); err != nil {
		return err
	}
	// Containers of a cluster that a restart of the machine or an interrupted
	// run left behind.
	if err := k.Delete(u.kubeconfig()); err != nil {
		return err
	}
	if err := os.RemoveAll(u.kubeconfig()); err != nil {
		return fmt.Errorf("old kubeconfig: %w", err)
	}
	m := cluster.Machine{Image: u.image, Offline: u.state.Offline, CgroupV1: machine.CgroupV1()}
	return k.Create(ctx, u.state.Options, m, u.kubeconfig())
}

func (u *up) waitReady(ctx context.Context, _ func(string)) error {
	for _, args := range [][]string{
		{"wait", "--for=condition=Ready", "nodes", "--all", "--timeout=180s"},
		{"--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s"},
	} {
		if _, err := u.kubectl().Output(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}
