package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/docker"
)

// GuestName is the node with a kernel of its own, and its container.
const GuestName = Name + "-guest"

// execAnnotation is on a Node whose processes `docker exec` does not reach. Its
// value are the words to put before a command, which then runs on the node.
const execAnnotation = "portway-lab/exec"

// guestExec is that for the guest.
const guestExec = "labexec run"

// modeAnnotation is what an agent whose configuration names no mode obeys.
const modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"

// Guest is a node of the cluster with a kernel of its own, user-mode-linux, in
// a container on the network of the others: it can do what this machine's
// kernel cannot. Everything above the kernel is as on the other nodes.
type Guest struct {
	Docker docker.Client
	Kube   Kubectl
	Kernel Kernel
	Image  string // the others' node image
	Family string // the cluster's: ipv4, ipv6 or dual
}

// Kernel is a user-mode-linux.
type Kernel struct {
	Program string // linux.uml
	Modules string // the directory with its modules, which is named as its version
	// Processor is the one of the machine's that it works on, by number. It has
	// only one of its own, and moving between several takes it three times as long.
	Processor string
}

// guestMemory is the kernel's, of which only what is used is taken from the
// machine.
const guestMemory = "2048M"

// NodeExec is a command that runs a program on a node of the lab.
func NodeExec(d docker.Client, node string, args ...string) command.Cmd {
	words := []string{"exec", "--interactive", node}
	if node == GuestName {
		words = append(words, strings.Fields(guestExec)...)
	}
	return d.Cmd(append(words, args...)...)
}

// Start boots the node, unless it runs.
func (g Guest) Start(ctx context.Context) error {
	running, err := g.Docker.Output(ctx, "ps", "--filter=name=^"+GuestName+"$", "--format={{.Names}}")
	if err != nil || running == GuestName {
		return err
	}
	if _, err := g.Docker.Output(ctx, "rm", "--force", "--volumes", GuestName); err != nil && !strings.Contains(err.Error(), "No such container") {
		return err
	}
	// It cannot ask Docker for names.
	servers, err := g.addresses(ctx, Name+"-control-plane")
	if err != nil {
		return err
	}
	if _, err := g.Docker.Output(ctx, g.runArgs(servers[0])...); err != nil {
		return fmt.Errorf("node %s: %w", GuestName, err)
	}
	return g.await(ctx)
}

// addresses are those of a container that are of the cluster's families.
func (g Guest) addresses(ctx context.Context, container string) ([]string, error) {
	out, err := g.Docker.Output(ctx, "inspect", "--format",
		`{{range .NetworkSettings.Networks}}{{.IPAddress}} {{.GlobalIPv6Address}}{{end}}`, container)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, word := range strings.Fields(out) {
		addr, err := netip.ParseAddr(word)
		if err != nil {
			return nil, fmt.Errorf("address of container %s: %w", container, err)
		}
		if g.Family == "dual" || addr.Is4() == (g.Family == "ipv4") {
			found = append(found, word)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("container %s has no %s address", container, g.Family)
	}
	return found, nil
}

// runArgs starts the container as kind would, so that kind sees and deletes it
// with the others, but with another first process.
func (g Guest) runArgs(server string) []string {
	return []string{
		"run", "--detach", "--name=" + GuestName, "--hostname=" + GuestName,
		"--label=io.x-k8s.kind.cluster=" + Name, "--label=io.x-k8s.kind.role=worker",
		"--network=kind", "--add-host=" + Name + "-control-plane:" + server,
		"--sysctl=net.ipv6.conf.all.disable_ipv6=0", "--cpuset-cpus=" + g.Kernel.Processor,
		"--privileged", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined",
		"--tmpfs=/run", "--tmpfs=/kind/lab/memory:exec", "--env=GUEST_MEMORY=" + guestMemory,
		"--volume=" + g.Kernel.Program + ":/usr/local/bin/linux.uml:ro",
		"--volume=" + g.Kernel.Modules + ":/lib/modules/" + filepath.Base(g.Kernel.Modules) + ":ro",
		"--entrypoint=/bin/sh", g.Image, "/kind/lab/guest.sh",
	}
}

// guestBoot is long for a busy machine; ten seconds are usual.
const guestBoot = 2 * time.Minute

// await waits until containerd answers on the node.
func (g Guest) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, guestBoot)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := g.exec(ctx, "", "systemctl", "is-active", "--quiet", "containerd")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s does not come up; see why with: %s: %w", GuestName, g.Docker.Cmd("logs", "--tail=50", GuestName), err)
		case <-tick.C:
		}
	}
}

func (g Guest) exec(ctx context.Context, stdin string, args ...string) error {
	cmd := NodeExec(g.Docker, GuestName, args...)
	cmd.Stdin = strings.NewReader(stdin)
	_, err := g.Docker.Run.Run(ctx, cmd)
	return err
}

// Join makes the node part of the cluster, unless it is, with a wish for the
// agent's mode there.
func (g Guest) Join(ctx context.Context, mode string) error {
	// Before the kubelet comes: an agent starts with it, and reads the mode.
	if err := g.applyNode(ctx, mode); err != nil {
		return err
	}
	if g.exec(ctx, "", "test", "-e", "/etc/kubernetes/kubelet.conf") == nil {
		return nil
	}
	token, err := g.Docker.Output(ctx, "exec", Name+"-control-plane", "kubeadm", "token", "create", "--ttl=1h")
	if err != nil {
		return err
	}
	config, err := g.joinConfig(ctx, token)
	if err != nil {
		return err
	}
	if err := g.exec(ctx, config, "sh", "-c", "cat >/kind/kubeadm.conf"); err != nil {
		return err
	}
	if err := g.exec(ctx, "", "kubeadm", "join", "--config=/kind/kubeadm.conf", "--skip-phases=preflight"); err != nil {
		return err
	}
	// The pod network asks for its address.
	_, err = g.Kube.Output(ctx, "wait", "--for=jsonpath={.status.addresses[0].address}", "node/"+GuestName, "--timeout=120s")
	return err
}

func (g Guest) applyNode(ctx context.Context, mode string) error {
	node, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{
			"name":        GuestName,
			"annotations": map[string]string{modeAnnotation: mode, execAnnotation: guestExec},
		},
		// It is slower than the others: for those pods that want this very node.
		"spec": map[string]any{"taints": []map[string]string{{"key": "portway-lab/guest", "effect": "PreferNoSchedule"}}},
	})
	if err != nil {
		return err
	}
	cmd := g.Kube.Cmd("apply", "--filename=-")
	cmd.Stdin = strings.NewReader(string(node))
	_, err = g.Docker.Run.Run(ctx, cmd)
	return err
}

// joinConfig is what kubeadm needs to know, as kind tells it to the others.
func (g Guest) joinConfig(ctx context.Context, token string) (string, error) {
	addrs, err := g.addresses(ctx, GuestName)
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration",
		"nodeRegistration": map[string]any{
			"criSocket": "unix:///run/containerd/containerd.sock",
			"kubeletExtraArgs": []map[string]string{
				{"name": "node-ip", "value": strings.Join(addrs, ",")},
				// cAdvisor reads hundreds of files each time.
				{"name": "housekeeping-interval", "value": "5m"},
				{"name": "provider-id", "value": "kind://docker/" + Name + "/" + GuestName},
			},
		},
		"discovery": map[string]any{"bootstrapToken": map[string]any{
			"apiServerEndpoint": Name + "-control-plane:6443", "token": token, "unsafeSkipCAVerification": true,
		}},
	})
	return string(raw), err
}
