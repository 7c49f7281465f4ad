package kernel

import (
	"context"

	"github.com/portway/portway/modules/dataplane"
)

// Reader reads virtual servers, of the kernel or of a saved dump.
type Reader interface {
	// List returns all virtual servers of a family with their real servers,
	// those of others, too, sorted. Those that a firewall mark selects have no
	// Key and are left out.
	List(ctx context.Context, f dataplane.Family) ([]VirtualServer, error)
	// Get returns one virtual server; false if it is not there.
	Get(ctx context.Context, k Key) (VirtualServer, bool, error)
}

// Servers is the part of the kernel that balances: the virtual servers of one
// network namespace, of both families.
type Servers interface {
	Reader
	// Apply makes the changes in their order. One that the kernel refuses is
	// returned and stops none of the others. After an error, which is not
	// about a single op, some changes may be made and others not: read again.
	Apply(ctx context.Context, ops []Op) ([]Refusal, error)
	Timers
	// Close lets go of the socket; the servers stay.
	Close() error
}

// Timers are the timeouts of connections, one set for each network namespace.
type Timers interface {
	Timeouts(ctx context.Context) (Timeouts, error)
	SetTimeouts(ctx context.Context, t Timeouts) error
}
