package kerneltest

import (
	"context"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// FailServers are servers, such as real ones, whose calls fail before they are
// made when fail returns an error.
func FailServers(s kernel.Servers, fail func() error) kernel.Servers { return failServers{s, fail} }

type failServers struct {
	kernel.Servers
	fail func() error
}

func (s failServers) List(ctx context.Context, f dataplane.Family) ([]kernel.VirtualServer, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	return s.Servers.List(ctx, f)
}

func (s failServers) Get(ctx context.Context, k kernel.Key) (kernel.VirtualServer, bool, error) {
	if err := s.fail(); err != nil {
		return kernel.VirtualServer{}, false, err
	}
	return s.Servers.Get(ctx, k)
}

// Apply asks fail twice: before, and when half of the changes are made.
func (s failServers) Apply(ctx context.Context, ops []kernel.Op) ([]kernel.Refusal, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	half := len(ops) / 2
	refused, err := s.Servers.Apply(ctx, ops[:half])
	if err != nil {
		return refused, err
	}
	if err := s.fail(); err != nil {
		return refused, err
	}
	more, err := s.Servers.Apply(ctx, ops[half:])
	return append(refused, more...), err
}

func (s failServers) Timeouts(ctx context.Context) (kernel.Timeouts, error) {
	if err := s.fail(); err != nil {
		return kernel.Timeouts{}, err
	}
	return s.Servers.Timeouts(ctx)
}

func (s failServers) SetTimeouts(ctx context.Context, t kernel.Timeouts) error {
	if err := s.fail(); err != nil {
		return err
	}
	return s.Servers.SetTimeouts(ctx, t)
}

// FailDevice is a device, such as the real one, whose calls fail before they
// are made when fail returns an error.
func FailDevice(d kernel.Device, fail func() error) kernel.Device { return failDevice{d, fail} }

type failDevice struct {
	kernel.Device
	fail func() error
}

func (d failDevice) Ensure(ctx context.Context) (bool, error) {
	if err := d.fail(); err != nil {
		return false, err
	}
	return d.Device.Ensure(ctx)
}

func (d failDevice) List(ctx context.Context, f dataplane.Family) ([]kernel.Local, error) {
	if err := d.fail(); err != nil {
		return nil, err
	}
	return d.Device.List(ctx, f)
}

// Apply asks fail twice: before, and when half of the changes are made.
func (d failDevice) Apply(ctx context.Context, ops []kernel.LocalOp) ([]kernel.LocalRefusal, error) {
	if err := d.fail(); err != nil {
		return nil, err
	}
	half := len(ops) / 2
	refused, err := d.Device.Apply(ctx, ops[:half])
	if err != nil {
		return refused, err
	}
	if err := d.fail(); err != nil {
		return refused, err
	}
	more, err := d.Device.Apply(ctx, ops[half:])
	return append(refused, more...), err
}

func (d failDevice) Remove(ctx context.Context) error {
	if err := d.fail(); err != nil {
		return err
	}
	return d.Device.Remove(ctx)
}
