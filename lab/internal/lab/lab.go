// Package lab brings a kind cluster with Portway up and down: each procedure is
// a list of small steps.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/cache"
	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/docker"
	"github.com/portway/portway/lab/internal/hostnet"
	"github.com/portway/portway/lab/internal/products"
)

// daemonDir is where the lab's own daemon keeps its socket; only root runs one.
const daemonDir = "/run/portway-lab"

// The one network that an offline lab uses. Its name is kind's own.
const (
	networkName   = "kind"
	networkBridge = "br-portway"
	networkCIDR6  = "fd00:706f:7274::/64"
)

// Lab is the lab of this user on this machine.
type Lab struct {
	Out   io.Writer
	run   command.Runner
	repo  string // the checkout that the agent is built from
	dir   string // state and kubeconfig
	runs  string // the run directory of our own daemon
	store cache.Store
	host  hostnet.Host
	state State
	// agentID tells one build of the agent from another.
	agentID string
}

// Open finds the checkout, the state and the cache. It changes nothing.
func Open(out io.Writer) (*Lab, error) {
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	repo, err := findRepo()
	if err != nil {
		return nil, err
	}
	store, err := cache.Default()
	if err != nil {
		return nil, err
	}
	run := command.Exec{}
	return &Lab{
		Out: out, run: run, repo: repo, dir: dir, runs: daemonDir, store: store,
		host: hostnet.Host{Run: run, Sysctl: "/proc/sys"},
	}, nil
}

// findRepo walks up from the working directory to the checkout.
func findRepo() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "lab", "build", "kubernetes", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not in a checkout of Portway: run the lab from inside one", start)
		}
	}
}

// lock keeps other lab commands out while one changes things. Its directory
// goes again if there is no lab in the end.
func (l *Lab) lock() (unlock func(), err error) {
	release, err := cache.TryLock(filepath.Join(l.dir, "lock"))
	if errors.Is(err, cache.ErrLocked) {
		return nil, fmt.Errorf("another lab command is at work: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		if _, err := os.Stat(l.stateFile()); errors.Is(err, os.ErrNotExist) {
			_ = l.removeState()
		}
		release()
	}, nil
}

// hold locks a lab that is up.
func (l *Lab) hold() (unlock func(), err error) {
	if unlock, err = l.lock(); err != nil {
		return nil, err
	}
	if l.state, err = l.load(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (l *Lab) kubeconfig() string { return filepath.Join(l.dir, "kubeconfig") }

func (l *Lab) kubectl() cluster.Kubectl {
	return cluster.Kubectl{Run: l.run, Program: l.state.Kubectl, Kubeconfig: l.kubeconfig()}
}

func (l *Lab) docker() docker.Client {
	c := docker.Client{Run: l.run}
	if l.state.OwnDaemon {
		c.Host = l.daemon("").Host()
	}
	return c
}

func (l *Lab) daemon(runtime string) docker.Daemon {
	return docker.Daemon{Run: l.run, RunDir: l.runs, DataDir: filepath.Join(l.store.Dir, "docker"), Runtime: runtime}
}

func (l *Lab) maker() products.Maker {
	return products.Maker{Run: l.run, Store: l.store, Lab: filepath.Join(l.repo, "lab")}
}

func (l *Lab) kind(note func(string)) (cluster.Kind, error) {
	return cluster.NewKind(l.docker(), note)
}

// Env prints what a shell needs to talk to the lab.
func (l *Lab) Env(context.Context) error {
	s, err := l.load()
	if err != nil {
		return err
	}
	l.state = s
	fmt.Fprintf(l.Out, "export KUBECONFIG=%s\n", l.kubeconfig())
	if host := l.docker().Host; host != "" {
		fmt.Fprintf(l.Out, "export DOCKER_HOST=%s\n", host)
	}
	fmt.Fprintf(l.Out, "export PATH=%s:$PATH\n", filepath.Dir(s.Kubectl))
	return nil
}
