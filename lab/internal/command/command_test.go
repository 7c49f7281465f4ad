package command

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestStringCanBePasted(t *testing.T) {
	for _, tc := range []struct {
		cmd  Cmd
		want string
	}{
		{New("ls", "-l", "/tmp/a b"), "ls -l '/tmp/a b'"},
		{New("echo", "", "it's", "$HOME"), `echo '' 'it'\''s' '$HOME'`},
		{Cmd{Args: []string{"docker", "ps"}, Env: []string{"DOCKER_HOST=unix:///run/x.sock"}}, "DOCKER_HOST=unix:///run/x.sock docker ps"},
		{Cmd{Args: []string{"go", "build"}, Dir: "/a b", Env: []string{"GOFLAGS="}}, "(cd '/a b' && GOFLAGS='' go build)"},
	} {
		if got := tc.cmd.String(); got != tc.want {
			t.Errorf("String() = %s, want %s", got, tc.want)
		}
	}
}

func TestPastedCommandIsTheSame(t *testing.T) {
	cmd := Cmd{Args: []string{"printf", "%s|", "a b", "it's", "$HOME", "", `"\`, "ü\n"}, Env: []string{"X=1 2"}}
	direct, err := Exec{}.Run(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	pasted, err := Exec{}.Run(t.Context(), New("sh", "-c", cmd.String()))
	if err != nil {
		t.Fatal(err)
	}
	if direct != pasted {
		t.Errorf("run directly it prints %q, pasted %q", direct, pasted)
	}
}

func TestErrors(t *testing.T) {
	_, err := Exec{}.Run(t.Context(), New("sh", "-c", "for i in $(seq 40); do echo line $i >&2; done; exit 3"))
	var failed *Error
	if !errors.As(err, &failed) {
		t.Fatalf("error is %v", err)
	}
	if strings.Contains(err.Error(), "line 20\n") || !strings.Contains(err.Error(), "| line 40\n") {
		t.Errorf("error has not just the last lines: %v", err)
	}
	if !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "to see it again: sh -c ") {
		t.Errorf("error lacks the status or the command: %v", err)
	}
	if _, err := (Exec{}).Run(t.Context(), New("no-such-program")); err == nil || !strings.Contains(err.Error(), "no-such-program: not installed") {
		t.Errorf("error is %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	cancel(interrupted)
	if _, err := (Exec{}).Run(ctx, New("sleep", "60")); !errors.Is(err, interrupted) {
		t.Errorf("error is %v", err)
	}
}

// Children that ignore the interrupt end all the same.
func TestInterruptedLeavesNoChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = Exec{}.Run(ctx, Cmd{
		Args:   []string{"sh", "-c", `(trap "" INT; echo ready >&2; exec sleep 600 2>/dev/null) & wait`},
		Stdout: w, Line: func(string) { cancel() },
	})
	if w.Close(); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a child still has the output: %v", err)
	}
}

func TestRun(t *testing.T) {
	var lines []string
	var out strings.Builder
	cmd := Cmd{
		Args: []string{"sh", "-c", "cat; echo $X; pwd; echo one >&2; printf two >&2"}, Dir: "/", Env: []string{"X=y"},
		Stdin: strings.NewReader("in\n"), Line: func(s string) { lines = append(lines, s) },
	}
	got, err := Exec{}.Run(t.Context(), cmd)
	if err != nil || got != "in\ny\n/\n" {
		t.Errorf("Run printed %q, %v", got, err)
	}
	if strings.Join(lines, ",") != "one" {
		t.Errorf("lines are %v", lines)
	}
	cmd.Stdin, cmd.Stdout = nil, &out
	if got, err := (Exec{}).Run(t.Context(), cmd); err != nil || got != "" || out.String() != "y\n/\n" {
		t.Errorf("with Stdout, Run returned %q and wrote %q, %v", got, out.String(), err)
	}
}
