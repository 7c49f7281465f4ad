// Package remote runs programs on the other side of a connection, as `docker
// exec` does in a container: for a node that has a kernel of its own, whose
// processes no tool of this machine's kernel can reach.
//
// There is no secret in it. The connection must be one that only the two sides
// can use.
package remote

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
)

// request is what the client sends first.
type request struct{ Args []string }

// input is what the client sends then: the program's standard input, until an
// empty one says that it ends.
type input struct{ Data []byte }

// output is what the server sends: what the program writes, then how it ended.
type output struct {
	Stderr bool
	Data   []byte
	End    *end
}

// end is how a program ended.
type end struct {
	Code int    // its exit code; 128 and the signal that ended it
	Err  string // why it did not start
}

// notStarted is the exit code of a program that could not be started, as
// shells have it.
const notStarted = 127

// Run has the other side of conn run a program, passes on its input and
// output, and returns its exit code. The program is killed if the connection
// ends before it.
func Run(conn net.Conn, stdin io.Reader, stdout, stderr io.Writer, args ...string) (code int, err error) {
	out := gob.NewEncoder(conn)
	if err := out.Encode(request{args}); err != nil {
		return notStarted, fmt.Errorf("%s: %w", args[0], err)
	}
	// It may still wait for input when the program has ended, so nobody waits
	// for it.
	go func() { _ = sendInput(out, stdin) }()
	in := gob.NewDecoder(conn)
	for {
		var o output
		if err := in.Decode(&o); err != nil {
			return notStarted, fmt.Errorf("%s: the connection ended before it: %w", args[0], err)
		}
		if o.End != nil {
			if o.End.Err != "" {
				err = errors.New(o.End.Err)
			}
			return o.End.Code, err
		}
		w := stdout
		if o.Stderr {
			w = stderr
		}
		if _, err := w.Write(o.Data); err != nil {
			return notStarted, fmt.Errorf("%s: %w", args[0], err)
		}
	}
}

// chunk is how much input or output is sent at once.
const chunk = 64 << 10

func sendInput(out *gob.Encoder, stdin io.Reader) error {
	buf := make([]byte, chunk)
	for {
		n, err := stdin.Read(buf)
		if n > 0 {
			if err := out.Encode(input{buf[:n]}); err != nil {
				return err
			}
		}
		if err != nil {
			return out.Encode(input{})
		}
	}
}
