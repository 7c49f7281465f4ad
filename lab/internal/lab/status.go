package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Status prints what is up.
func (l *Lab) Status(ctx context.Context) error {
	s, err := l.load()
	if errors.Is(err, errDown) {
		fmt.Fprintln(l.Out, "The lab is down.")
		return nil
	}
	if err != nil {
		return err
	}
	l.state = s
	fmt.Fprintf(l.Out, "The lab is up with %s.\n", s.Options)
	fmt.Fprintf(l.Out, "kubeconfig: %s\n", l.kubeconfig())
	if host := l.docker().Host; host != "" {
		fmt.Fprintf(l.Out, "docker:     %s\n", host)
	}
	for _, args := range [][]string{
		{"get", "nodes", "--output=wide"},
		{"get", "pods", "--all-namespaces", "--output=wide"},
		{"get", "services", "--all-namespaces"},
	} {
		out, err := l.kubectl().Output(ctx, args...)
		if err != nil {
			return err
		}
		fmt.Fprintf(l.Out, "\n%s\n", strings.TrimSpace(out))
	}
	return nil
}
