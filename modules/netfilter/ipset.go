package netfilter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

// What the kernel says no with. They are wrapped with the name of the set.
var (
	ErrSetMissing = errors.New("the set does not exist")
	ErrSetInUse   = errors.New("the set is in use by a rule")
	ErrSetExists  = errors.New("a set of that name but of another kind exists")
	ErrSetFull    = errors.New("the set is full")
)

// Sets reads the sets by netlink. Sets without addresses belong to every
// family.
func (h *Host) Sets(ctx context.Context, keep func(name string) bool) ([]Set, error) {
	conn, err := openSets()
	if err != nil {
		return nil, err
	}
	defer conn.close()
	return conn.list(ctx, h.backend.Family, keep)
}

// ChangeSets carries out the plan by netlink.
func (h *Host) ChangeSets(ctx context.Context, plan SetPlan) error {
	if plan.IsEmpty() {
		return nil
	}
	conn, err := openSets()
	if err != nil {
		return err
	}
	defer conn.close()
	return conn.carryOut(ctx, plan)
}

// setConn speaks with the ipset part of the kernel, in the network namespace
// of the thread that opened it.
type setConn struct {
	socket  map[int]*nl.SocketHandle
	message attributeWriter
}

func openSets() (*setConn, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for ipset: %w", err)
	}
	return &setConn{
		socket: map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}},
	}, nil
}

func (c *setConn) close() { c.socket[unix.NETLINK_NETFILTER].Socket.Close() }

// begin starts a message.
func (c *setConn) begin() *attributeWriter {
	c.message.buf = c.message.buf[:0]
	c.message.bytes(nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
	return &c.message
}

// send sends the message that begin started and hands on the answers.
func (c *setConn) send(command int, answer func(msg []byte)) error {
	req := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	req.Sockets = c.socket
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddRawData(c.message.buf)
	err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if answer != nil && len(msg) > nl.SizeofNfgenmsg {
			answer(msg[nl.SizeofNfgenmsg:])
		}
		return true
	})
	return setError(command, err)
}

// setError gives the numbers of ipset their words: several of them mean
// different things for different commands.
func setError(command int, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch {
	case errno == unix.ENOENT:
		return ErrSetMissing
	case errno == unix.EEXIST && command == nl.IPSET_CMD_CREATE:
		return ErrSetExists
	case errno == nl.IPSET_ERR_BUSY, errno == nl.IPSET_ERR_REFERENCED:
		return ErrSetInUse
	case errno == nl.IPSET_ERR_TYPE_SPECIFIC:
		return ErrSetFull
	case errno == unix.EPERM:
		return fmt.Errorf("%w: run as root or with CAP_NET_ADMIN", err)
	case errno >= nl.IPSET_ERR_PRIVATE:
		return nl.IPSetError(errno)
	}
	return err
}

// list reads sets with their entries. A large set comes in several messages,
// of which only the first has its header.
func (c *setConn) list(ctx context.Context, f dataplane.Family, keep func(string) bool) ([]Set, error) {
	var sets []Set
	c.begin()
	err := c.send(nl.IPSET_CMD_LIST, func(msg []byte) {
		name := setName(msg)
		if ctx.Err() != nil || keep != nil && !keep(name) {
			return
		}
		if n := len(sets); n == 0 || sets[n-1].Name != name {
			sets = append(sets, Set{Name: name})
		}
		sets[len(sets)-1].read(msg)
	})
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
		return nil, fmt.Errorf("listing the ipsets: %w", err)
	}
	sets = slices.DeleteFunc(sets, func(s Set) bool { return s.Family != 0 && s.Family != f })
	slices.SortFunc(sets, func(a, b Set) int { return cmp.Compare(a.Name, b.Name) })
	return sets, nil
}

func setName(msg []byte) string {
	for kind, v := range attributes(msg) {
		if kind == nl.IPSET_ATTR_SETNAME {
			return nl.BytesToString(v)
		}
	}
	return ""
}

func (s *Set) read(msg []byte) {
	for kind, v := range attributes(msg) {
		switch kind {
		case nl.IPSET_ATTR_TYPENAME:
			s.Type = SetType(nl.BytesToString(v))
		case nl.IPSET_ATTR_FAMILY:
			s.Family = familyOf(firstByte(v))
		case nl.IPSET_ATTR_DATA:
			s.header(v)
		case nl.IPSET_ATTR_ADT:
			for _, data := range attributes(v) {
				var e SetEntry
				e.read(s.Type, data)
				s.Entries = append(s.Entries, e)
			}
		}
	}
}

func familyOf(af byte) dataplane.Family {
	switch af {
	case unix.AF_INET:
		return dataplane.IPv4
	case unix.AF_INET6:
		return dataplane.IPv6
	}
	return 0
}
