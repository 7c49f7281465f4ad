// Package cluster reaches the lab's cluster from the outside: its API, its nodes
// and the places in it from which a Service can be used.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// Access is what it takes to reach a kind cluster.
type Access struct {
	Kubeconfig string
	DockerHost string // empty: the Docker of the user's environment
	Agnhost    string // the image of clients and servers, which is on every node
}

// labAgnhost is the name under which the lab puts agnhost on its nodes.
const labAgnhost = "portway-lab/agnhost:dev"

// FindAccess returns the access that the environment names, or else the lab's.
func FindAccess(ctx context.Context) (Access, error) {
	a := Access{
		Kubeconfig: os.Getenv("KUBECONFIG"),
		DockerHost: os.Getenv("DOCKER_HOST"),
		Agnhost:    os.Getenv("AGNHOST_IMAGE"),
	}
	if a.Agnhost == "" {
		a.Agnhost = labAgnhost
	}
	if a.Kubeconfig != "" {
		return a, nil
	}
	out, err := exec.CommandContext(ctx, "go", "run", "github.com/portway/portway/lab/cmd/lab", "env").Output()
	if err != nil {
		return a, fmt.Errorf("no KUBECONFIG in the environment, and the lab has none (is it up? make lab-up): %w", withStderr(err))
	}
	exports := parseExports(string(out))
	a.Kubeconfig, a.DockerHost = exports["KUBECONFIG"], exports["DOCKER_HOST"]
	return a, nil
}

var export = regexp.MustCompile(`(?m)^export (\w+)=(.*)$`)

// parseExports reads lines of a shell as `lab env` prints them.
func parseExports(s string) map[string]string {
	m := make(map[string]string)
	for _, line := range export.FindAllStringSubmatch(s, -1) {
		m[line[1]] = line[2]
	}
	return m
}

// withStderr adds what a program complained about to the error that it ended
// with.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
