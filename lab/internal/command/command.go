// Package command runs programs. Every error carries the command in a form
// that a person can paste into a shell to see it fail again.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Cmd is one program to run.
type Cmd struct {
	Args   []string          // program and its arguments
	Dir    string            // working directory; empty: ours
	Env    []string          // KEY=value, added to our environment
	Stdin  io.Reader         // nil: nothing
	Stdout io.Writer         // nil: Run returns the output instead
	Line   func(line string) // called for each line written to stderr
}

// New returns a Cmd for a program and its arguments.
func New(args ...string) Cmd { return Cmd{Args: args} }

// Runner runs commands. Exec is the real one.
type Runner interface {
	// Run runs cmd and returns its standard output, unless cmd.Stdout took it.
	Run(ctx context.Context, cmd Cmd) (string, error)
}

// Error is a command that failed.
type Error struct {
	Cmd    Cmd
	Stderr string // the last lines
	Err    error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %v", e.Cmd.Args[0], e.Err)
	if e.Stderr != "" {
		text += "\n" + indent(e.Stderr)
	}
	return text + "\n  to see it again: " + e.Cmd.String()
}

func (e *Error) Unwrap() error { return e.Err }

// String is the command as a shell would take it.
func (c Cmd) String() string {
	words := make([]string, 0, len(c.Env)+len(c.Args))
	for _, kv := range c.Env {
		key, value, _ := strings.Cut(kv, "=")
		words = append(words, key+"="+quote(value))
	}
	for _, arg := range c.Args {
		words = append(words, quote(arg))
	}
	line := strings.Join(words, " ")
	if c.Dir != "" {
		return "(cd " + quote(c.Dir) + " && " + line + ")"
	}
	return line
}

// Exec runs commands as processes of this machine.
type Exec struct{}

// Run implements Runner. A cancelled ctx interrupts the program and its children,
// and kills those that are there when the program has ended, or ten seconds later.
func (Exec) Run(ctx context.Context, c Cmd) (string, error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...) //nolint:gosec // running what the lab says is this function's purpose
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdin = c.Stdin
	var out bytes.Buffer
	cmd.Stdout = c.Stdout
	if c.Stdout == nil {
		cmd.Stdout = &out
	}
	tail := &lineTail{line: c.Line}
	cmd.Stderr = tail
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // children that it left
	}
	if err != nil {
		return out.String(), &Error{Cmd: c, Stderr: tail.String(), Err: describe(ctx, err)}
	}
	return out.String(), nil
}

// describe replaces what os/exec says by what a person can act on.
func describe(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("not installed")
	}
	return err
}

// quote makes one shell word of s.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("-_./:=,@%+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func indent(s string) string {
	return "  | " + strings.ReplaceAll(s, "\n", "\n  | ")
}

// lineTail keeps the last lines written to it and passes each one on.
type lineTail struct {
	line    func(string)
	last    []string
	partial []byte
}

const tailLines = 15

func (t *lineTail) Write(p []byte) (int, error) {
	t.partial = append(t.partial, p...)
	for {
		i := bytes.IndexByte(t.partial, '\n')
		if i < 0 {
			return len(p), nil
		}
		t.add(string(t.partial[:i]))
		t.partial = t.partial[i+1:]
	}
}

func (t *lineTail) add(line string) {
	t.last = append(t.last, line)
	if len(t.last) > tailLines {
		t.last = t.last[1:]
	}
	if t.line != nil {
		t.line(line)
	}
}

func (t *lineTail) String() string {
	lines := t.last
	if len(t.partial) > 0 {
		lines = append(lines[:len(lines):len(lines)], string(t.partial))
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
