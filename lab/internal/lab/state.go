package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/hostnet"
)

// State is what `lab up` did, so that every later command finds the same
// cluster and `lab down` can undo it. It is written before the thing is done.
type State struct {
	Options   cluster.Options
	Offline   bool   // made without a registry
	OwnDaemon bool   // on a Docker daemon of the lab's own
	Bridge    string // the guarded bridge device, if any
	Guest     bool   // the mode is that of a node with a kernel of its own
	Kubectl   string // the program
	PodRootfs string // the root file system of pods that the nodes were made with
	// SuiteImages is the archive of images for upstream's tests that the nodes hold.
	SuiteImages string
	Saved       hostnet.Saved // what our daemon changes
}

// errDown says that there is no lab.
var errDown = errors.New("the lab is down; make lab-up brings it up")

// stateDir holds the state and the kubeconfig of the lab.
func stateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "portway", "lab"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the lab's state: %w", err)
	}
	return filepath.Join(home, ".local", "state", "portway", "lab"), nil
}

func (l *Lab) stateFile() string { return filepath.Join(l.dir, "state.json") }

func (l *Lab) load() (State, error) {
	raw, err := os.ReadFile(l.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return State{}, errDown
	}
	if err != nil {
		return State{}, fmt.Errorf("state of the lab: %w", err)
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return State{}, fmt.Errorf("state of the lab in %s: %w", l.stateFile(), err)
	}
	return s, nil
}

func (l *Lab) save() error {
	raw, err := json.MarshalIndent(l.state, "", "  ")
	if err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	partial := l.stateFile() + ".new"
	if err := os.WriteFile(partial, raw, 0o644); err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	if err := os.Rename(partial, l.stateFile()); err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	return nil
}
