package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds the wait for an answer, which the kernel gives at once.
const netlinkTimeout = 10 * time.Second

// receiveSize holds what the kernel puts into one part of a dump, at most
// 32 KiB (NLMSG_GOODSIZE and the growth of netlink_dump since Linux 3.15).
const receiveSize = 1 << 16

// socket is a netlink socket to the netfilter subsystem. It may be used by one
// goroutine at a time.
type socket struct {
	fd  int
	buf []byte
}

func newSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &socket{fd: fd, buf: make([]byte, receiveSize)}
	timeout := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	for _, set := range []func() error{
		func() error { return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout) },
		func() error { return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout) },
		// An error need not repeat the request (Linux 4.3).
		func() error { return unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) },
	} {
		if err := set(); err != nil {
			s.close()
			return nil, fmt.Errorf("set up netlink socket: %w", os.NewSyscallError("setsockopt", err))
		}
	}
	return s, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) } // nothing that could be lost

func (s *socket) send(b []byte) error {
	if err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	return nil
}

// reply is one netlink message; body is valid until the next one is received.
type reply struct {
	kind uint16
	seq  uint32
	body []byte
}

// errno is the verdict of an NLMSG_ERROR or NLMSG_DONE message, 0 for success.
func (r reply) errno() unix.Errno {
	if len(r.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(r.body)))
}

// receive yields what the kernel sends until done says that it was the last.
func (s *socket) receive(done func(reply) bool) error {
	for {
		n, err := s.recv()
		if err != nil {
			return err
		}
		for b := s.buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return fmt.Errorf("netlink message of %d bytes in a packet of %d", size, len(b))
			}
			r := reply{
				kind: binary.NativeEndian.Uint16(b[4:]),
				seq:  binary.NativeEndian.Uint32(b[8:]),
				body: b[unix.SizeofNlMsghdr:size],
			}
			if done(r) {
				return nil
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

func (s *socket) recv() (int, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
		if err == unix.EINTR {
			continue
		}
		return n, os.NewSyscallError("recvfrom", err)
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// attrs yields the attributes of b, each with its type, without flags. It ends
// at the first that is cut off.
func attrs(b []byte, yield func(kind uint16, value []byte)) {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return
		}
		yield(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:size])
		b = b[min(align(size), len(b)):]
	}
}

// message appends a netlink message, whose body is appended by a function.
func message(b []byte, kind, flags uint16, seq uint32, body func([]byte) []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, unix.SizeofNlMsghdr)...)
	b = body(b)
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+4:], kind)
	binary.NativeEndian.PutUint16(b[start+6:], flags)
	binary.NativeEndian.PutUint32(b[start+8:], seq)
	return b
}

// attr appends an attribute.
func attr(b []byte, kind uint16, value ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

// nested appends an attribute that holds others.
func nested(b []byte, kind uint16, body func([]byte) []byte) []byte {
	start := len(b)
	b = body(append(b, 0, 0, 0, 0))
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+2:], kind|unix.NLA_F_NESTED)
	return b
}

// addrOf reads an address of 4 or 16 bytes; anything else is the zero Addr.
func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
