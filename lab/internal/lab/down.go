package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/portway/portway/lab/internal/step"
)

// Down takes down what Up made. The cache stays; everything else is as it was
// before. Whatever fails, the rest is still taken down.
func (l *Lab) Down(ctx context.Context) error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	l.state, err = l.load()
	if errors.Is(err, errDown) {
		fmt.Fprintln(l.Out, "The lab is down.")
		return nil
	}
	if err != nil {
		return err
	}
	if err := step.RunAll(ctx, l.Out, l.downSteps()); err != nil {
		return fmt.Errorf("%w\n  what is left can be tried again: make lab-down", err)
	}
	return l.removeState()
}

func (l *Lab) removeState() error {
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	_ = os.Remove(filepath.Dir(l.dir)) // only if nothing else of Portway is in it
	return nil
}

func (l *Lab) downSteps() []step.Step {
	var steps []step.Step
	if !l.state.OwnDaemon || l.daemon("").Running() {
		steps = append(steps, step.Step{Name: "Delete the kind cluster", Run: l.deleteCluster})
	}
	if l.state.OwnDaemon {
		steps = append(steps, step.Step{Name: "Stop the lab's own Docker", Run: func(ctx context.Context, _ func(string)) error {
			return l.daemon("").Stop(ctx)
		}})
	}
	if l.state.Bridge != "" {
		steps = append(steps, step.Step{Name: "Remove the lab's firewall rules", Run: func(ctx context.Context, _ func(string)) error {
			return l.host.Unguard(ctx, l.state.Bridge)
		}})
	}
	if l.state.OwnDaemon {
		steps = append(steps, step.Step{Name: "Put this machine's network settings back", Run: func(ctx context.Context, _ func(string)) error {
			return l.host.Restore(ctx, l.state.Saved)
		}})
	}
	return steps
}

// deleteCluster removes the network too if it is ours: a network named kind
// that was there before keeps its own bridge.
func (l *Lab) deleteCluster(ctx context.Context, note func(string)) error {
	k, err := l.kind(note)
	if err != nil {
		return err
	}
	if err := k.Delete(l.kubeconfig()); err != nil {
		return err
	}
	if l.state.Bridge != networkBridge {
		return nil
	}
	return l.docker().RemoveNetwork(ctx, networkName)
}
