package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// Host is the real Servers.
type Host struct {
	socket *socket
	table  table
	kind   uint16 // of messages to IPVS
}

var _ Servers = (*Host)(nil)

// Close closes the socket.
func (h *Host) Close() error { return errors.Join(h.socket.close(), h.table.close()) }

// List asks for the virtual servers by netlink and reads their real servers
// from /proc/net/ip_vs, because netlink has a question for the real servers of
// one virtual server only. (At 3,000 virtual servers it took 25 ms, and the
// questions 650.) The questions are for those that are not in the file, which
// another program may have changed meanwhile. The kernel does not say when its
// table changes during an answer, so such a change may hide a virtual server: it
// then shows in the next List.
func (h *Host) List(ctx context.Context, f dataplane.Family) ([]VirtualServer, error) {
	var list []VirtualServer
	err := h.socket.dump(ctx, h.question(cmdGetService, nil), func() { list = list[:0] }, func(body []byte) {
		if v, ok := serverOf(body); ok && v.Key.Family() == f {
			v.Place = len(list) + 1
			list = append(list, v)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the virtual servers: %w", reason(err))
	}
	SortServers(list)
	list = slices.CompactFunc(list, func(a, b VirtualServer) bool { return a.Key == b.Key })
	reals := h.table.reals(f)
	for i := range list {
		v := &list[i]
		if known, ok := reals[v.Key]; ok {
			v.Reals = sortReals(known)
		} else if err := h.reals(ctx, v); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Get returns one virtual server.
func (h *Host) Get(ctx context.Context, k Key) (VirtualServer, bool, error) {
	var v VirtualServer
	var ok bool
	if err := context.Cause(ctx); err != nil {
		return v, false, err
	}
	_, err := h.socket.ask(0, h.question(cmdGetService, &k), func(body []byte) { v, ok = serverOf(body) })
	if errors.Is(err, unix.ESRCH) {
		return v, false, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("reading the virtual server %s: %w", k, reason(err))
	}
	if !ok || v.Key != k {
		return v, false, fmt.Errorf("reading the virtual server %s: the kernel answered with %s", k, v.Key)
	}
	return v, true, h.reals(ctx, &v)
}

// reals reads the real servers of a virtual server.
func (h *Host) reals(ctx context.Context, v *VirtualServer) error {
	err := h.socket.dump(ctx, h.question(cmdGetDest, &v.Key), func() { v.Reals = nil }, func(body []byte) {
		if r, ok := realOf(body, v.Key.Family()); ok {
			v.Reals = append(v.Reals, r)
		}
	})
	if err != nil {
		return fmt.Errorf("listing the real servers of %s: %w", v.Key, reason(err))
	}
	v.Reals = sortReals(v.Reals)
	return nil
}

// question writes a command about one virtual server or, without a key, all.
func (h *Host) question(command byte, k *Key) func(*message) (kind, flags uint16) {
	return func(m *message) (kind, flags uint16) {
		m.generic(command)
		if k != nil {
			nest := m.open(attrService | unix.NLA_F_NESTED)
			m.key(*k)
			m.close(nest)
		}
		return h.kind, 0
	}
}

// Apply sends the ops in batches.
func (h *Host) Apply(ctx context.Context, ops []Op) ([]Refusal, error) {
	var refused []Refusal
	var forbidden error
	write := func(m *message, i int) (kind, flags uint16) {
		m.op(&ops[i])
		return h.kind, 0
	}
	err := h.socket.change(ctx, len(ops), write, func(i int, errno unix.Errno) {
		if errno == unix.EPERM {
			forbidden = errno
		}
		refused = append(refused, Refusal{ops[i], refusalOf(ops[i].Verb, errno)})
	})
	if err = cmp.Or(forbidden, err); err != nil {
		return refused, fmt.Errorf("changing virtual servers: %w", reason(err))
	}
	return refused, nil
}

// refusalOf gives an errno its meaning for an op.
func refusalOf(v Verb, errno unix.Errno) error {
	switch errno {
	case unix.EEXIST:
		return ErrExists
	case unix.ESRCH:
		return ErrNoServer
	case unix.ENOENT:
		if v.OfReal() {
			return ErrNoReal
		}
		return ErrScheduler
	case unix.EINVAL:
		return ErrAddress
	case unix.ERANGE:
		return ErrWeight
	}
	return errno
}

// reason says what helps against an error that is not about one object.
func reason(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) && errno == unix.EPERM {
		return fmt.Errorf("%w: run as root or with CAP_NET_ADMIN", err)
	}
	return err
}

// Timeouts reads the timeouts.
func (h *Host) Timeouts(ctx context.Context) (Timeouts, error) {
	var t Timeouts
	if err := context.Cause(ctx); err != nil {
		return t, err
	}
	_, err := h.socket.ask(0, h.question(cmdGetConfig, nil), func(body []byte) { t = timeoutsOf(body) })
	if err != nil {
		return t, fmt.Errorf("reading the timeouts of IPVS: %w", reason(err))
	}
	return t, nil
}

// SetTimeouts sets those that are not 0.
func (h *Host) SetTimeouts(ctx context.Context, t Timeouts) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	_, err := h.socket.ask(unix.NLM_F_ACK, func(m *message) (kind, flags uint16) {
		m.generic(cmdSetConfig)
		for _, one := range []struct {
			kind uint16
			time time.Duration
		}{{attrTimeoutTCP, t.TCP}, {attrTimeoutTCPFin, t.TCPFin}, {attrTimeoutUDP, t.UDP}} {
			m.uint32(one.kind, seconds(one.time))
		}
		return h.kind, 0
	}, func([]byte) {})
	if err != nil {
		return fmt.Errorf("setting the timeouts of IPVS to %+v: %w", t, reason(err))
	}
	return nil
}
