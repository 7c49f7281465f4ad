package kerneltest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// Servers is a kernel.Servers with memory, for both families. It refuses what
// the kernel refuses. It may be used by several goroutines.
type Servers struct {
	mu       sync.Mutex
	servers  map[kernel.Key]*server
	known    []string // schedulers
	timeouts kernel.Timeouts
	faults   faults
	messages int
}

type server struct {
	kernel.Server
	reals map[string]kernel.Real // by address, as text
}

var _ kernel.Servers = (*Servers)(nil)

// Schedulers are those of Debian's Linux 6.1, which leaves out twos.
func Schedulers() []string {
	return []string{
		"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "mh", "fo", "ovf",
	}
}

// NewServers returns a kernel without virtual servers.
func NewServers() *Servers {
	return &Servers{
		servers:  make(map[kernel.Key]*server),
		known:    Schedulers(),
		timeouts: kernel.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute},
	}
}

// Messages counts the ops that were sent, the refused ones, too, and the
// timeouts; not what was read.
func (s *Servers) Messages() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages
}

// Inject asks decide about every call from now on; nil ends all faults.
func (s *Servers) Inject(decide func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.inject(decide)
}

// Connections sets how many connections a real server has, for tests of
// draining. It must exist.
func (s *Servers) Connections(k kernel.Key, real kernel.Real) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.servers[k]
	if v == nil {
		return fmt.Errorf("%s: %w", k, kernel.ErrNoServer)
	}
	r, ok := v.reals[real.Addr.String()]
	if !ok {
		return fmt.Errorf("%s: %s: %w", k, real.Addr, kernel.ErrNoReal)
	}
	r.Active, r.Inactive = real.Active, real.Inactive
	v.reals[real.Addr.String()] = r
	return nil
}

// List returns the virtual servers of a family, sorted.
func (s *Servers) List(ctx context.Context, f dataplane.Family) ([]kernel.VirtualServer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(context.Cause(ctx), s.faults.next("List").err); err != nil {
		return nil, fmt.Errorf("listing the virtual servers: %w", err)
	}
	var list []kernel.VirtualServer
	for k, v := range s.servers {
		if k.Family() == f {
			list = append(list, v.read(k))
		}
	}
	kernel.SortServers(list)
	return list, nil
}

// Get returns one virtual server.
func (s *Servers) Get(ctx context.Context, k kernel.Key) (kernel.VirtualServer, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(context.Cause(ctx), s.faults.next("Get").err); err != nil {
		return kernel.VirtualServer{}, false, fmt.Errorf("reading the virtual server %s: %w", k, err)
	}
	v, ok := s.servers[k]
	if !ok {
		return kernel.VirtualServer{}, false, nil
	}
	return v.read(k), true, nil
}

func (v *server) read(k kernel.Key) kernel.VirtualServer {
	out := kernel.VirtualServer{Key: k, Server: v.Server, Reals: slices.Collect(maps.Values(v.reals))}
	one := []kernel.VirtualServer{out}
	kernel.SortServers(one)
	return one[0]
}

// Apply makes the changes, each of them or none of it.
func (s *Servers) Apply(ctx context.Context, ops []kernel.Op) ([]kernel.Refusal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(ops) == 0 {
		return nil, nil
	}
	fault := s.faults.next("Apply")
	if err := cmp.Or(context.Cause(ctx), fault.err); err != nil && !fault.applied {
		return nil, fmt.Errorf("changing virtual servers: %w", err)
	}
	if fault.partly {
		ops = ops[:len(ops)/2]
	}
	var refused []kernel.Refusal
	for _, op := range ops {
		s.messages++
		if err := s.apply(op); err != nil {
			refused = append(refused, kernel.Refusal{Op: op, Err: err})
		}
	}
	if fault.err != nil {
		return refused, fmt.Errorf("changing virtual servers: %w", fault.err)
	}
	return refused, nil
}

// Timeouts returns the timeouts.
func (s *Servers) Timeouts(ctx context.Context) (kernel.Timeouts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(context.Cause(ctx), s.faults.next("Timeouts").err); err != nil {
		return kernel.Timeouts{}, fmt.Errorf("reading the timeouts: %w", err)
	}
	return s.timeouts, nil
}

// SetTimeouts sets those that are not 0.
func (s *Servers) SetTimeouts(ctx context.Context, t kernel.Timeouts) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fault := s.faults.next("SetTimeouts")
	if err := cmp.Or(context.Cause(ctx), fault.err); err != nil && !fault.applied {
		return fmt.Errorf("setting the timeouts: %w", err)
	}
	s.messages++
	t = kernel.Timeouts{TCP: wholeSeconds(t.TCP), TCPFin: wholeSeconds(t.TCPFin), UDP: wholeSeconds(t.UDP)}
	s.timeouts = t.Or(s.timeouts)
	return fault.err
}

// Close does nothing.
func (s *Servers) Close() error { return nil }
