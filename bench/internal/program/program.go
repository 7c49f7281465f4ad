// Package program is what the programs that a benchmark starts have in common.
package program

import (
	"os"
	"syscall"
	"time"
)

// Tail is the end of a log.
func Tail(log string) string {
	const most = 3000
	b, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// Stop asks a program to end, kills it if it has not after a time, and waits until
// it has.
func Stop(p *os.Process, ended <-chan struct{}, patience time.Duration) {
	_ = p.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-ended:
	case <-time.After(patience):
		_ = p.Kill()
		<-ended
	}
}
