// Package docker talks to a Docker daemon: one that is there already, or the
// lab's own, which it starts and stops.
package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/portway/portway/lab/internal/command"
)

// Client runs the docker program against one daemon.
type Client struct {
	Run  command.Runner
	Host string // DOCKER_HOST; empty: what the user's environment says
}

// Cmd is a docker command, to be changed or run.
func (c Client) Cmd(args ...string) command.Cmd {
	cmd := command.Cmd{Args: append([]string{"docker"}, args...)}
	if c.Host != "" {
		cmd.Env = []string{"DOCKER_HOST=" + c.Host}
	}
	return cmd
}

// Output runs a docker command and returns what it prints, trimmed.
func (c Client) Output(ctx context.Context, args ...string) (string, error) {
	out, err := c.Run.Run(ctx, c.Cmd(args...))
	return strings.TrimSpace(out), err
}

// Usable reports whether the daemon answers.
func (c Client) Usable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	version, err := c.Output(ctx, "version", "--format", "{{.Server.Version}}")
	return err == nil && version != ""
}

// HasImage reports whether the daemon holds the image.
func (c Client) HasImage(ctx context.Context, name string) bool {
	_, err := c.Output(ctx, "image", "inspect", "--format={{.Id}}", name)
	return err == nil
}

// CanPull reports whether the image could be pulled: a registry that has it
// answers.
func (c Client) CanPull(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err := c.Output(ctx, "manifest", "inspect", name)
	return err == nil
}

// EnsureNetwork makes the bridge network with the given name and device, with
// IPv4 and IPv6, unless a network of that name exists, and returns the name of
// its bridge device.
func (c Client) EnsureNetwork(ctx context.Context, name, device, subnet6 string) (string, error) {
	const option = "com.docker.network.bridge.name"
	out, err := c.Output(ctx, "network", "ls", "--filter", "name=^"+name+"$", "--format", "{{.ID}}")
	if err != nil {
		return "", err
	}
	if out == "" {
		_, err := c.Output(ctx, "network", "create", "--driver=bridge", "--ipv6", "--subnet", subnet6,
			"--opt", option+"="+device, name)
		return device, err
	}
	id, _, _ := strings.Cut(out, "\n")
	found, err := c.Output(ctx, "network", "inspect", "--format", `{{index .Options "`+option+`"}}`, name)
	if err != nil {
		return "", err
	}
	if found == "" {
		found = "br-" + id[:min(len(id), 12)] // how Docker names a bridge by itself
	}
	return found, nil
}

// RemoveNetwork removes the network if it is there.
func (c Client) RemoveNetwork(ctx context.Context, name string) error {
	_, err := c.Output(ctx, "network", "rm", name)
	var failed *command.Error
	if errors.As(err, &failed) && strings.Contains(strings.ToLower(failed.Stderr), "no such network") ||
		err != nil && strings.Contains(err.Error(), "not found") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("network %s: %w", name, err)
	}
	return nil
}
