package remote

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// dial starts a server and connects to it.
func dial(t *testing.T) net.Conn {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(context.WithoutCancel(t.Context()), l) }()
	t.Cleanup(func() {
		_ = l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestRun(t *testing.T) {
	long := strings.Repeat("all of it, and more\n", 20_000) // several chunks
	for _, tc := range []struct {
		name, stdin    string
		args           []string
		stdout, stderr string
		code           int
		fails          string // part of the error
	}{
		{name: "output", args: []string{"sh", "-c", "echo out; echo err >&2"}, stdout: "out\n", stderr: "err\n"},
		{name: "input", args: []string{"cat"}, stdin: long, stdout: long},
		{name: "input that nobody reads", args: []string{"true"}, stdin: long},
		{name: "exit code", args: []string{"sh", "-c", "exit 7"}, code: 7},
		{name: "signal", args: []string{"sh", "-c", "kill -TERM $$"}, code: 128 + int(syscall.SIGTERM)},
		{name: "no such program", args: []string{"/nowhere"}, code: notStarted, fails: "/nowhere"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code, err := Run(dial(t), strings.NewReader(tc.stdin), &stdout, &stderr, tc.args...)
			if code != tc.code || (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("code %d, error %v", code, err)
			}
			if stdout.String() != tc.stdout || stderr.String() != tc.stderr {
				t.Errorf("%d bytes on stdout, want %d; stderr %q", stdout.Len(), len(tc.stdout), stderr.String())
			}
		})
	}
}

func TestProgramEndsWithItsClient(t *testing.T) {
	dir := t.TempDir()
	fifo := dir + "/fifo"
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	conn := dial(t)
	go func() {
		// A child of the shell holds the fifo open, and waits for what never
		// comes.
		_, _ = Run(conn, new(forever), io.Discard, io.Discard, "sh", "-c", "exec 3>"+fifo+"; cat; true")
	}()
	held, err := os.Open(fifo) // returns once it is open on the other side
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, held) // ends when nobody holds the other side
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the program outlives its client")
	}
}

// forever is input that never comes.
type forever struct{}

func (*forever) Read([]byte) (int, error) { select {} }
