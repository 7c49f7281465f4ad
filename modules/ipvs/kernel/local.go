package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// DeviceName is the dummy device by which others detect the ipvs mode (Calico
// for one).
const DeviceName = "kube-ipvs0"

// RouteProtocol marks the routes that this package makes, and the only ones
// that it lists and deletes ("ip route show table local proto 86"). No routing
// daemon is known to use the number.
const RouteProtocol = 86

// Local is what the device makes local to the node: ip_vs sees only packets
// that are routed to the node itself.
type Local struct {
	// Prefix is one address, or for a route a range.
	Prefix netip.Prefix
	// Bound: the address is on the device, as kube-proxy puts it there.
	// Otherwise there is a route "local PREFIX dev kube-ipvs0" in table local
	// and no address, with the same effect on packets. One prefix may have
	// both.
	Bound bool
	// Source, of a route only, is the address from which the node itself sends
	// there. With the zero Addr, and for a bound address, the kernel takes the
	// very address that is sent to.
	Source netip.Addr
}

// Compare orders by address and length, addresses before routes.
func (l Local) Compare(o Local) int {
	if c := cmp.Or(l.Prefix.Addr().Compare(o.Prefix.Addr()), l.Prefix.Bits()-o.Prefix.Bits()); c != 0 || l.Bound == o.Bound {
		return c
	}
	if l.Bound {
		return -1
	}
	return 1
}

// String describes it in the words of ip-address and ip-route.
func (l Local) String() string {
	text := "local route " + l.Prefix.String()
	if l.Bound {
		text = "address " + l.Prefix.String()
	}
	if l.Source.IsValid() {
		text += " src " + l.Source.String()
	}
	return text
}

// LocalOp adds an address or a route, or deletes it. What is as wanted already
// is as good, in both directions; a route with another source gets the wanted
// one.
type LocalOp struct {
	Local  Local
	Delete bool
}

// String describes the op in a line.
func (o LocalOp) String() string {
	if o.Delete {
		return "delete " + o.Local.String() + " of " + DeviceName
	}
	return "add " + o.Local.String() + " to " + DeviceName
}

var (
	// ErrNoDevice: the device does not exist, or is not as Ensure makes it.
	ErrNoDevice = errors.New("the device " + DeviceName + " is missing, down, or without its own address")
	// ErrHeld: another device of the node has the address, so it stays there.
	ErrHeld = errors.New("another device of this node has it")
	// ErrSource: the source is no address of the node.
	ErrSource = errors.New("the kernel does not accept the source: is it an address of this node?")
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

// Device is kube-ipvs0. Only addresses on it, whoever made them, and routes
// through it with RouteProtocol are ever written or deleted.
type Device interface {
	// Ensure makes the device and sets it up, without ARP and without IPv6
	// addresses of its own, and tells whether there was something to do.
	Ensure(ctx context.Context) (changed bool, err error)
	// List returns what the device makes local in a family, sorted, without
	// link-local and loopback addresses, and routes that others made, such as
	// the kernel for an address. ErrNoDevice comes with what there is on one that
	// is down, as kube-proxy's is, or that has lost the address of its own.
	List(ctx context.Context, f dataplane.Family) ([]Local, error)
	// Apply makes the changes in their order. Refused ones stop none of the
	// others; after an error read again. A device that is down takes deletions
	// only.
	Apply(ctx context.Context, ops []LocalOp) ([]LocalRefusal, error)
	// Remove deletes the device. ErrInUse if it makes something local in
	// either family; that it is gone already is as good.
	Remove(ctx context.Context) error
}
