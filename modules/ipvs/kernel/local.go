package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// DeviceName is the dummy device by which others detect the ipvs mode (Calico
// for one).
const DeviceName = "kube-ipvs0"

// Local is what the device makes local to the node: ip_vs sees only packets
// that are routed to the node itself.
type Local struct {
	// Prefix is one address, or for a route a range.
	Prefix netip.Prefix
	// Bound: the address is on the device. Otherwise there is only a route
	// "local PREFIX dev kube-ipvs0" in table local, with the same effect on
	// packets.
	Bound bool
	// Source is the address from which the node itself sends there; the zero
	// Addr leaves it to the kernel, which then takes the address itself.
	Source netip.Addr
}

// Compare orders by address and length.
func (l Local) Compare(o Local) int {
	if c := l.Prefix.Addr().Compare(o.Prefix.Addr()); c != 0 {
		return c
	}
	return l.Prefix.Bits() - o.Prefix.Bits()
}

// String describes it in the words of ip-address and ip-route.
func (l Local) String() string {
	text := "local " + l.Prefix.String()
	if l.Bound {
		text = "address " + l.Prefix.String()
	}
	if l.Source.IsValid() {
		text += " src " + l.Source.String()
	}
	return text
}

// LocalOp makes something local, or no longer local.
type LocalOp struct {
	Local Local
	// Delete removes Local.Prefix from the device, bound or not. That it is
	// gone already is as good. Otherwise the device has Local as it says
	// afterwards, however it had it before.
	Delete bool
}

// String describes the op in a line.
func (o LocalOp) String() string {
	if o.Delete {
		return "remove " + o.Local.Prefix.String() + " from " + DeviceName
	}
	return "put " + o.Local.String() + " on " + DeviceName
}

var (
	// ErrNoDevice: the device does not exist, is down, or is no dummy device.
	ErrNoDevice = errors.New("the device " + DeviceName + " is missing or down")
	// ErrHeld: another device of the node makes the address local already, so
	// it stays there.
	ErrHeld = errors.New("another device of this node has it")
	// ErrInUse: the device still makes something local.
	ErrInUse = errors.New("the device " + DeviceName + " is in use")
)

// LocalRefusal is a LocalOp that failed by itself.
type LocalRefusal struct {
	Op  LocalOp
	Err error
}

// Error names the address and the reason.
func (r *LocalRefusal) Error() string { return fmt.Sprintf("%s: %v", r.Op, r.Err) }

// Unwrap returns the reason.
func (r *LocalRefusal) Unwrap() error { return r.Err }

// Device is kube-ipvs0. Only addresses on it, and routes of type local in
// table local through it, are ever read, written or removed.
type Device interface {
	// Ensure makes the device and sets it up, without ARP and without IPv6
	// addresses of its own, and tells whether there was something to do.
	Ensure(ctx context.Context) (changed bool, err error)
	// List returns what the device makes local in a family, sorted; without
	// link-local addresses. ErrNoDevice if it is not as Ensure makes it.
	List(ctx context.Context, f dataplane.Family) ([]Local, error)
	// Apply makes the changes in their order. Refused ones stop none of the
	// others; after an error read again.
	Apply(ctx context.Context, ops []LocalOp) ([]LocalRefusal, error)
	// Remove deletes the device. ErrInUse if it makes something local in
	// either family; that it is gone already is as good.
	Remove(ctx context.Context) error
}
