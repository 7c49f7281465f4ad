package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// Apply sends the ops in batches.
func (Dummy) Apply(ctx context.Context, ops []LocalOp) ([]LocalRefusal, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	h, err := openRoutes()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s, err := openSocket(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	link, err := h.find()
	if link == nil || err != nil && !isRemoval(ops) {
		return nil, errors.Join(err, s.close())
	}
	a := applying{routes: h, socket: s, index: link.Attrs().Index}
	err = a.apply(ctx, ops)
	return a.refused, errors.Join(err, s.close())
}

// isRemoval tells whether nothing is added: a device may be down for that.
func isRemoval(ops []LocalOp) bool {
	return !slices.ContainsFunc(ops, func(op LocalOp) bool { return !op.Delete })
}

// applying is the state of one Apply.
type applying struct {
	routes
	socket  *socket
	index   int
	refused []LocalRefusal
}

func (a *applying) refuse(op LocalOp, err error) {
	a.refused = append(a.refused, LocalRefusal{op, err})
}

func (a *applying) apply(ctx context.Context, ops []LocalOp) error {
	ops, err := a.withoutHeld(ctx, ops)
	if err != nil {
		return err
	}
	var again []LocalOp // routes that exist, with another source perhaps
	err = a.send(ctx, ops, unix.NLM_F_EXCL, func(op LocalOp, errno unix.Errno) {
		switch {
		case op.Delete && isGone(errno), op.Local.Bound && errno == unix.EEXIST:
		case errno == unix.EEXIST:
			again = append(again, op)
		default:
			a.refuse(op, localRefusal(op, errno))
		}
	})
	if err != nil || len(again) == 0 {
		return err
	}
	return a.replace(ctx, again)
}

// isGone tells whether an address or route to delete is not there.
func isGone(errno unix.Errno) bool {
	return errno == unix.ESRCH || errno == unix.ENOENT || errno == unix.EADDRNOTAVAIL
}

func localRefusal(op LocalOp, errno unix.Errno) error {
	if errno == unix.EINVAL && op.Local.Source.IsValid() {
		return ErrSource
	}
	return errno
}

// send sends the ops; NEW messages carry the flags more.
func (a *applying) send(ctx context.Context, ops []LocalOp, more uint16, refused func(LocalOp, unix.Errno)) error {
	var forbidden error
	write := func(m *message, i int) (kind, flags uint16) { return m.local(&ops[i], a.index, more) }
	err := a.socket.change(ctx, len(ops), write, func(i int, errno unix.Errno) {
		if errno == unix.EPERM {
			forbidden = errno
		}
		refused(ops[i], errno)
	})
	if forbidden != nil {
		err = forbidden
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", DeviceName, reason(err))
	}
	return nil
}

// withoutHeld refuses to add addresses that another device has. The kernel
// would not: it takes an IPv6 route beside the one of the address.
func (a *applying) withoutHeld(ctx context.Context, ops []LocalOp) ([]LocalOp, error) {
	held := make(map[netip.Addr]bool)
	for _, f := range dataplane.Families() {
		if !slices.ContainsFunc(ops, func(op LocalOp) bool {
			return !op.Delete && dataplane.FamilyOf(op.Local.Prefix.Addr()) == f
		}) {
			continue
		}
		addresses, err := a.addresses(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, one := range addresses {
			if one.index != a.index {
				held[one.prefix.Addr()] = true
			}
		}
	}
	kept := make([]LocalOp, 0, len(ops))
	for _, op := range ops {
		if !op.Delete && op.Local.Prefix.IsSingleIP() && held[op.Local.Prefix.Addr()] {
			a.refuse(op, ErrHeld)
			continue
		}
		kept = append(kept, op)
	}
	return kept, nil
}

// replace gives routes that exist the wanted source, if they are ours. The
// kernel's flag for replacing would take over one of another device, too.
func (a *applying) replace(ctx context.Context, ops []LocalOp) error {
	have := make(map[netip.Prefix]localRoute)
	for _, f := range dataplane.Families() {
		list, err := a.locals(ctx, f)
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.index == a.index || have[r.Prefix].index == 0 {
				have[r.Prefix] = r
			}
		}
	}
	var differ []LocalOp
	for _, op := range ops {
		switch r := have[op.Local.Prefix]; {
		case r.index != 0 && r.index != a.index:
			a.refuse(op, ErrHeld)
		case r.protocol != RouteProtocol || r.Source != op.Local.Source:
			differ = append(differ, op)
		}
	}
	return a.send(ctx, differ, unix.NLM_F_REPLACE, func(op LocalOp, errno unix.Errno) {
		a.refuse(op, localRefusal(op, errno))
	})
}
