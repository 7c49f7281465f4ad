package kerneltest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// Device is a kernel.Device with memory. It may be used by several goroutines.
type Device struct {
	mu       sync.Mutex
	exists   bool
	down     bool
	held     map[netip.Prefix]bool // by other devices
	locals   map[object]kernel.Local
	faults   faults
	messages int
}

// object is an address or a route.
type object struct {
	prefix netip.Prefix
	bound  bool
}

var _ kernel.Device = (*Device)(nil)

// NewDevice returns the device of a node that has not got it yet. Other
// devices of the node hold the addresses.
func NewDevice(others ...netip.Addr) *Device {
	d := &Device{held: make(map[netip.Prefix]bool), locals: make(map[object]kernel.Local)}
	for _, a := range others {
		d.held[netip.PrefixFrom(a, a.BitLen())] = true
	}
	return d
}

// BindDown makes the device as kube-proxy does, which never sets it up, with
// addresses on it.
func (d *Device) BindDown(_ context.Context, addrs ...netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exists, d.down = true, true
	for _, a := range addrs {
		p := netip.PrefixFrom(a, a.BitLen())
		d.locals[object{p, true}] = kernel.Local{Prefix: p, Bound: true}
	}
	return nil
}

// Messages counts the changes that were asked for.
func (d *Device) Messages() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.messages
}

// Inject asks decide about every call from now on; nil ends all faults.
func (d *Device) Inject(decide func(Call) Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.inject(decide)
}

// Ensure makes the device.
func (d *Device) Ensure(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fault := d.faults.next("Ensure")
	if err := cmp.Or(context.Cause(ctx), fault.err); err != nil && !fault.applied {
		return false, fmt.Errorf("device %s: %w", kernel.DeviceName, err)
	}
	changed := !d.exists || d.down
	d.exists, d.down = true, false
	return changed, fault.err
}

// List returns what the device makes local.
func (d *Device) List(ctx context.Context, f dataplane.Family) ([]kernel.Local, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := cmp.Or(context.Cause(ctx), d.faults.next("List").err); err != nil {
		return nil, fmt.Errorf("device %s: %w", kernel.DeviceName, err)
	}
	if !d.exists {
		return nil, kernel.ErrNoDevice
	}
	list := slices.SortedFunc(maps.Values(d.locals), kernel.Local.Compare)
	list = slices.DeleteFunc(list, func(l kernel.Local) bool {
		return dataplane.FamilyOf(l.Prefix.Addr()) != f
	})
	if d.down {
		return list, kernel.ErrNoDevice
	}
	return list, nil
}

// Apply makes the changes.
func (d *Device) Apply(ctx context.Context, ops []kernel.LocalOp) ([]kernel.LocalRefusal, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(ops) == 0 {
		return nil, nil
	}
	fault := d.faults.next("Apply")
	if err := cmp.Or(context.Cause(ctx), fault.err); err != nil && !fault.applied {
		return nil, fmt.Errorf("device %s: %w", kernel.DeviceName, err)
	}
	adds := slices.ContainsFunc(ops, func(op kernel.LocalOp) bool { return !op.Delete })
	if !d.exists || d.down && adds {
		return nil, kernel.ErrNoDevice
	}
	if fault.partly {
		ops = ops[:len(ops)/2]
	}
	var refused []kernel.LocalRefusal
	for _, op := range ops {
		d.messages++
		if err := d.apply(op); err != nil {
			refused = append(refused, kernel.LocalRefusal{Op: op, Err: err})
		}
	}
	return refused, fault.err
}

func (d *Device) apply(op kernel.LocalOp) error {
	l := op.Local
	one := object{l.Prefix, l.Bound}
	switch {
	case op.Delete:
		delete(d.locals, one)
	case d.held[l.Prefix]:
		return kernel.ErrHeld
	case l.Source.IsValid() && !l.Bound && !d.held[netip.PrefixFrom(l.Source, l.Source.BitLen())]:
		return kernel.ErrSource
	default:
		if l.Bound {
			l.Source = netip.Addr{}
		}
		d.locals[one] = l
	}
	return nil
}

// Remove deletes the device.
func (d *Device) Remove(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	fault := d.faults.next("Remove")
	if err := cmp.Or(context.Cause(ctx), fault.err); err != nil && !fault.applied {
		return fmt.Errorf("device %s: %w", kernel.DeviceName, err)
	}
	if len(d.locals) > 0 {
		return kernel.ErrInUse
	}
	d.exists, d.down = false, false
	return fault.err
}
