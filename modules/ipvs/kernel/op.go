package kernel

import (
	"errors"
	"fmt"
	"net/netip"
)

// Verb is what an Op does.
type Verb uint8

// The verbs. Set changes what exists. Deleting a virtual server deletes its
// real servers, too.
const (
	AddServer Verb = iota + 1
	SetServer
	DeleteServer
	AddReal
	SetReal
	DeleteReal
)

var verbNames = [...]string{
	AddServer: "add virtual server", SetServer: "change virtual server", DeleteServer: "delete virtual server",
	AddReal: "add real server", SetReal: "change real server", DeleteReal: "delete real server",
}

// String returns the verb in words.
func (v Verb) String() string {
	if int(v) < len(verbNames) && v != 0 {
		return verbNames[v]
	}
	return fmt.Sprintf("Verb(%d)", uint8(v))
}

// OfReal tells whether the verb is about a real server.
func (v Verb) OfReal() bool { return v >= AddReal }

// Op is one change, one message to the kernel.
type Op struct {
	Verb Verb
	Key  Key
	// Server is for AddServer and SetServer.
	Server Server
	// Real and Weight are for AddReal and SetReal, Real also for DeleteReal.
	// Packets are masqueraded, connections are not limited. A weight of 0 gives
	// the real server no new flows and keeps the ones that it has.
	Real   netip.AddrPort
	Weight int
}

// String describes the op in a line, such as
// "add real server 10.0.0.7:8080 -w 1 of TCP 10.96.0.1:443".
func (o Op) String() string {
	switch o.Verb {
	case AddServer, SetServer:
		return fmt.Sprintf("%s %s %s", o.Verb, o.Key, o.Server)
	case AddReal, SetReal:
		return fmt.Sprintf("%s %s -w %d of %s", o.Verb, o.Real, o.Weight, o.Key)
	case DeleteReal:
		return fmt.Sprintf("%s %s of %s", o.Verb, o.Real, o.Key)
	}
	return fmt.Sprintf("%s %s", o.Verb, o.Key)
}

// What the kernel says no with.
var (
	// ErrExists: the virtual or real server is there already.
	ErrExists = errors.New("it exists already")
	// ErrNoServer: the virtual server is not there.
	ErrNoServer = errors.New("there is no such virtual server")
	// ErrNoReal: the virtual server has no such real server.
	ErrNoReal = errors.New("there is no such real server")
	// ErrScheduler: the kernel has no such scheduler, nor a module for it.
	ErrScheduler = errors.New("the kernel has no such scheduler")
	// ErrAddress: the address cannot be that of a virtual or real server, such
	// as one of multicast.
	ErrAddress = errors.New("the kernel does not accept its address or port")
	// ErrWeight: the weight is negative or too large.
	ErrWeight = errors.New("the kernel does not accept its weight")
)

// Refusal is an op that the kernel refused, and nothing else.
type Refusal struct {
	Op  Op
	Err error // wraps one of the errors above, or an errno
}

// Error names the object and the reason.
func (r *Refusal) Error() string { return r.Op.String() + ": " + r.Err.Error() }

// Unwrap returns the reason.
func (r *Refusal) Unwrap() error { return r.Err }
