package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/command"
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
	unlock, err := l.hold()
	if err != nil {
		return err
	}
	defer unlock()
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
	defer os.Remove(archive.Name())
	if err := archive.Close(); err != nil {
		return fmt.Errorf("agent image: %w", err)
	}
	if l.state.Offline {
		l.agentID, err = l.maker().AgentArchive(ctx, filepath.Join(l.repo, "services"), archive.Name(), l.state.PodRootfs, note)
	} else {
		build := l.docker().Cmd("build", "--tag="+products.AgentImage, "--file=services/agent/Dockerfile", ".")
		build.Dir = l.repo
		l.agentID, err = l.dockerBuild(ctx, build, products.AgentImage, archive.Name(), note)
	}
	if err != nil {
		return fmt.Errorf("agent image: %w", err)
	}
	return l.loadArchive(ctx, archive.Name(), note)
}

// dockerBuild builds an image as anyone with a registry does, saves it to the
// file archive and returns its id.
func (l *Lab) dockerBuild(ctx context.Context, build command.Cmd, name, archive string, note func(string)) (string, error) {
	note("docker build")
	if _, err := l.run.Run(ctx, build); err != nil {
		return "", err
	}
	if _, err := l.docker().Output(ctx, "save", "--output="+archive, name); err != nil {
		return "", err
	}
	return l.docker().Output(ctx, "image", "inspect", "--format={{.Id}}", name)
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
	defer f.Close()
	args := products.ImportArgs("--no-unpack")
	if node == cluster.GuestName {
		// On a busy machine that may take longer there than the two minutes
		// that the kubelet grants a container.
		args = products.ImportArgs()
	}
	cmd := cluster.NodeExec(l.docker(), node, args...)
	cmd.Stdin = f
	_, err = l.run.Run(ctx, cmd)
	return err
}

// overlay is the kustomization that the lab puts on top of the mode's own: where
// this cluster's API server is, and which image this is. The lab's image always
// has the same name, so only the annotation rolls new agents out.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: kube-system
resources: [%q]
images: [{name: portway/agent, newName: %q, newTag: %q}]
configMapGenerator:
  - name: portway-apiserver
    behavior: merge
    literals: ["KUBERNETES_SERVICE_HOST=%s", "KUBERNETES_SERVICE_PORT=6443"]
patches:
  - target: {kind: DaemonSet, name: portway}
    patch: |
      - op: add
        path: /spec/template/metadata/annotations
        value: {portway-lab/image: %q}
`

// manifests is the directory of the mode's own kustomization; with a guest,
// where nodes differ in what they can do, of the one that leaves the mode to
// each Node.
func (l *Lab) manifests() string {
	deploy := filepath.Join(l.repo, "services", "agent", "deploy")
	if l.state.Guest {
		return filepath.Join(deploy, "base")
	}
	return filepath.Join(deploy, "overlays", l.state.Options.Mode)
}

// deployAgent applies the manifests of the mode.
func (l *Lab) deployAgent(ctx context.Context, _ func(string)) error {
	// Not the Service's address, which works only when the agent does; and not
	// a name, as nodes ask for names by way of rules that a test may remove.
	host, err := l.kubectl().Output(ctx, "get", "nodes", "--selector=node-role.kubernetes.io/control-plane",
		`--output=jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)
	if err != nil {
		return err
	}
	host, _, _ = strings.Cut(host, " ") // the cluster's first family
	dir, err := l.writeOverlay(l.manifests(), host)
	if err != nil {
		return fmt.Errorf("manifests of the agent: %w", err)
	}
	for _, args := range [][]string{
		{"apply", "--kustomize=" + dir},
		{"--namespace=kube-system", "rollout", "status", "daemonset/portway", "--timeout=180s"},
	} {
		if _, err := l.kubectl().Output(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// writeOverlay writes the kustomization and returns its directory. Kustomize
// takes other directories only by relative path.
func (l *Lab) writeOverlay(mode, host string) (string, error) {
	dir := filepath.Join(l.dir, "agent")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	relative, err := filepath.Rel(dir, mode)
	if err != nil {
		return "", err
	}
	name, tag, _ := strings.Cut(products.AgentImage, ":")
	content := fmt.Sprintf(overlay, relative, name, tag, host, l.agentID)
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o644)
}

// findKubectl is for a cluster with a registry: a kubectl of the user's, or
// else one built from the pinned module.
func (u *up) findKubectl(ctx context.Context, note func(string)) error {
	if found, err := exec.LookPath("kubectl"); err == nil {
		u.state.Kubectl = found
		return nil
	}
	built, err := u.maker().Kubernetes(ctx, "cmd/kubectl", note)
	u.state.Kubectl = built
	return err
}
