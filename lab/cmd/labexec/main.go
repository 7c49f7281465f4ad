// Command labexec runs programs on the node whose kernel runs in this
// container:
//
//	labexec serve            in the node, from its boot on
//	labexec run PROGRAM ...  in the container, through docker exec
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/portway/portway/lab/internal/remote"
)

// The two ends of the link between a container and the kernel in it. Nobody
// else is on it.
const (
	listenAt = "[fe80::2%vec1]:1022"
	dialTo   = "[fe80::2%tap1]:1022"
)

func main() {
	code, err := run(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "labexec:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (code int, err error) {
	switch {
	case len(args) == 1 && args[0] == "serve":
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", listenAt)
		if err != nil {
			return 1, err
		}
		return 0, remote.Serve(ctx, l)
	case len(args) > 1 && args[0] == "run":
		// A kernel that does not answer is booting, or gone.
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", dialTo)
		if err != nil {
			return 1, err
		}
		return remote.Run(conn, os.Stdin, os.Stdout, os.Stderr, args[1:]...)
	}
	return 2, errors.New("usage: labexec serve | labexec run PROGRAM [ARGUMENT...]")
}
