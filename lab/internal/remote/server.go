package remote

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
)

// Serve runs the programs that clients ask for, each as a process of its own
// group, until the listener is closed.
func Serve(ctx context.Context, l net.Listener) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close()
			serve(ctx, conn)
		}()
	}
}

// serve runs one program. A client that is gone misses nothing that it could
// be told, so errors of the connection only end the program.
func serve(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := gob.NewDecoder(conn)
	out := &answers{enc: gob.NewEncoder(conn), gone: cancel}
	var req request
	if err := in.Decode(&req); err != nil || len(req.Args) == 0 {
		return
	}
	cmd := exec.CommandContext(ctx, req.Args[0], req.Args[1:]...) //nolint:gosec // running what it is told is this package's purpose
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Stdout, cmd.Stderr = stream{out, false}, stream{out, true}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		out.send(output{End: &end{Code: notStarted, Err: err.Error()}})
		return
	}
	go func() {
		feed(stdin, in)
		cancel()
	}()
	out.send(output{End: ending(cmd.Wait())})
}

// feed passes a client's input on to the program, until the client is gone. A
// program need not read its input, or all of it.
func feed(stdin io.WriteCloser, in *gob.Decoder) {
	for {
		var i input
		if err := in.Decode(&i); err != nil {
			return
		}
		if len(i.Data) == 0 {
			_ = stdin.Close()
			continue // to see the client go
		}
		_, _ = stdin.Write(i.Data)
	}
}

func ending(err error) *end {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return &end{}
	case !errors.As(err, &exit):
		return &end{Code: notStarted, Err: err.Error()}
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return &end{Code: 128 + int(status.Signal())}
	}
	return &end{Code: exit.ExitCode()}
}

// answers sends what several goroutines have to say over one connection.
type answers struct {
	mu   sync.Mutex
	enc  *gob.Encoder
	gone func() // called if nobody listens any more
}

func (a *answers) send(o output) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.enc.Encode(o); err != nil {
		a.gone()
	}
}

// stream is one of a program's outputs.
type stream struct {
	to     *answers
	stderr bool
}

func (s stream) Write(p []byte) (int, error) {
	s.to.send(output{Stderr: s.stderr, Data: p})
	return len(p), nil
}
