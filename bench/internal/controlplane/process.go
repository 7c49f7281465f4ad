package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/portway/portway/bench/internal/program"
)

// process is one program of the control plane.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// start starts a program whose output goes to a log file in dir.
func start(dir, path string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(path), ended: make(chan struct{})}
	p.log = filepath.Join(dir, p.name+".log")
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(path, args...) //nolint:noctx // stop ends it, gently first
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// It is killed when the thread ends that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // await and stop say what matters
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return p, nil
}

// await asks until ready says so.
func (p *process) await(ctx context.Context, limit time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s has ended:\n%s", p.name, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p.name, errors.Join(err, ctx.Err()), p.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tail is the end of the log.
func (p *process) tail() string { return program.Tail(p.log) }

// stop asks the program to end, and kills it if it does not.
func (p *process) stop() { program.Stop(p.cmd.Process, p.ended, 10*time.Second) }
