package rig

import (
	"fmt"
	"runtime"
	"time"
)

// A crew runs functions on threads that stay in a network namespace: to make a
// thread and to enter cost more than most functions do, on some kernels a lot
// more. A thread without work for a while ends.
type crew struct {
	jobs chan func()
	end  chan struct{}
}

// idle is how long a thread waits for its next function.
const idle = time.Second

func newCrew() crew { return crew{make(chan func()), make(chan struct{})} }

// dismiss ends the threads that wait. Nothing may be running.
func (c crew) dismiss() { close(c.end) }

// onNetwork is Do for functions that only open sockets or read and write
// settings: it does not enter the mount namespace.
func (h *Host) onNetwork(f func() error) error {
	done := make(chan error, 1)
	job := func() { done <- f() }
	select {
	case h.crew.jobs <- job:
		return <-done
	default:
	}
	entered := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: nobody else may get this thread
		err := h.enterNetwork()
		entered <- err
		if err == nil {
			job()
			h.crew.work()
		}
	}()
	if err := <-entered; err != nil {
		return fmt.Errorf("enter %s: %w", h.Name, err)
	}
	return <-done
}

func (c crew) work() {
	timer := time.NewTimer(idle)
	for {
		timer.Reset(idle)
		select {
		case job := <-c.jobs:
			job()
		case <-timer.C:
			return
		case <-c.end:
			return
		}
	}
}
