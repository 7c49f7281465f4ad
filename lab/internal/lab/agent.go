package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/products"
	"github.com/portway/portway/lab/internal/step"
)

// agentSteps build the agent from this checkout and put it on every node.
func (l *Lab) agentSteps() []step.Step {
	return []step.Step{
		{Name: "Build the agent's image", Run: l.agentImage},
		{Name: "Deploy the agent", Run: l.deployAgent},
	}
}

// Load rebuilds the agent from this checkout and rolls it out.
func (l *Lab) Load(ctx context.Context) error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if l.state, err = l.load(); err != nil {
		return err
	}
	if l.state.Options.Proxy != cluster.Portway {
		return fmt.Errorf("the lab runs %s, so there is no agent to load: make lab-down, then make lab-up", l.state.Options.Proxy)
	}
	return step.Run(ctx, l.Out, l.agentSteps())
}

// agentImage makes the image and puts it into the nodes' containerd.
func (l *Lab) agentImage(ctx context.Context, note func(string)) error {
	archive, err := os.CreateTemp("", "portway-agent-*.tar")
	if err != nil {
		return fmt.Errorf("agent image: %w", err)
	}
	defer os.Remove(archive.Name()) //nolint:errcheck // a temporary file
	if err := archive.Close(); err != nil {
		return fmt.Errorf("agent image: %w", err)
	}
	if l.state.Offline {
		err = l.maker().AgentArchive(ctx, filepath.Join(l.repo, "services", "agent"), archive.Name(), note)
	} else {
		err = l.dockerBuild(ctx, products.AgentImage, filepath.Join("services", "agent", "Dockerfile"), archive.Name(), note)
	}
	if err != nil {
		return fmt.Errorf("agent image: %w", err)
	}
	return l.loadArchive(ctx, archive.Name(), note)
}

// dockerBuild is how anyone with a registry builds the image.
func (l *Lab) dockerBuild(ctx context.Context, name, dockerfile, archive string, note func(string)) error {
	note("docker build")
	cmd := l.docker().Cmd("build", "--tag="+name, "--file="+dockerfile, ".")
	cmd.Dir = l.repo
	if _, err := l.run.Run(ctx, cmd); err != nil {
		return err
	}
	_, err := l.docker().Output(ctx, "save", "--output="+archive, name)
	return err
}

// loadArchive imports an archive of images into every node.
func (l *Lab) loadArchive(ctx context.Context, archive string, note func(string)) error {
	k, err := l.kind(note)
	if err != nil {
		return err
	}
	nodes, err := k.NodeNames()
	if err != nil {
		return err
	}
	for _, node := range nodes {
		note("loading into " + node)
		if err := l.loadInto(ctx, node, archive); err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
	}
	return nil
}

func (l *Lab) loadInto(ctx context.Context, node, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	cmd := l.docker().Cmd(append([]string{"exec", "--interactive", node}, products.ImportArgs(false)...)...)
	cmd.Stdin = f
	_, err = l.run.Run(ctx, cmd)
	return err
}

// deployAgent applies the manifests of the mode. The image keeps its name, so
// pods that were there already are replaced by hand.
func (l *Lab) deployAgent(ctx context.Context, _ func(string)) error {
	dir := filepath.Join(l.repo, "services", "agent", "deploy", l.state.Options.Mode)
	if _, err := l.kubectl().Output(ctx, "apply", "--kustomize="+dir); err != nil {
		return err
	}
	for _, verb := range []string{"restart", "status"} {
		if _, err := l.kubectl().Output(ctx, "--namespace=kube-system", "rollout", verb, "daemonset/portway"); err != nil {
			return err
		}
	}
	return nil
}

// findKubectl is for a cluster with a registry: a kubectl of the user's, or
// else one built from the pinned module.
func (u *up) findKubectl(ctx context.Context, note func(string)) error {
	if found, err := exec.LookPath("kubectl"); err == nil {
		u.state.Kubectl = found
		return nil
	}
	built, err := u.maker().Kubectl(ctx, note)
	u.state.Kubectl = built
	return err
}
