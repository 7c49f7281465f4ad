package kernel

import (
	"context"
	"errors"
)

// Open opens the virtual servers of the calling thread's network namespace.
func Open(_ context.Context) (Servers, error) { return nil, errors.ErrUnsupported }

// NewDevice returns the device in the calling thread's network namespace, and
// does nothing to it yet.
func NewDevice() (Device, error) { return nil, errors.ErrUnsupported }

// Support tells whether this machine has what the mode needs: IPVS, the
// schedulers, and dummy devices. It loads modules where it can. The error says
// in a sentence what is missing and what to do about it.
func Support(_ context.Context, _ ...string) error { return errors.ErrUnsupported }
