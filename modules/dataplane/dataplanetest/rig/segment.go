package rig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Segment is what matters of a TCP segment without data that a test makes, or of
// one that it has seen.
type Segment struct {
	// Src and Dst have the ports; of a segment that was seen over IPv6 the
	// addresses are not known.
	Src, Dst netip.AddrPort
	Seq, Ack uint32
	Length   uint32 // of the data that was seen
}

// Wiretap is a raw socket that sees the TCP segments that come to a host, and
// sends some that the host's kernel would not.
type Wiretap struct {
	host *Host
	fd   int
	v6   bool
}

// Wiretap opens one for the family of an address, until the test ends.
func (h *Host) Wiretap(tb TB, like netip.Addr) *Wiretap {
	tb.Helper()
	w := &Wiretap{host: h, v6: like.Is6()}
	family := unix.AF_INET
	if w.v6 {
		family = unix.AF_INET6
	}
	err := h.onNetwork(func() (err error) {
		w.fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	})
	if err != nil {
		tb.Fatalf("%s: raw socket: %v", h.Name, err)
	}
	tb.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// Next waits for a segment to a port that a test accepts.
func (w *Wiretap) Next(port uint16, timeout time.Duration, accept func(Segment) bool) (Segment, error) {
	limit := unix.NsecToTimeval(int64(timeout))
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return Segment{}, err
	}
	packet := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(w.fd, packet, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Segment{}, fmt.Errorf("%s: see a segment to port %d: %w", w.host.Name, port, err)
		}
		if s, ok := w.parse(packet[:n]); ok && s.Dst.Port() == port && accept(s) {
			return s, nil
		}
	}
}

// parse reads a packet as raw sockets give it: with its header over IPv4 only.
func (w *Wiretap) parse(b []byte) (s Segment, ok bool) {
	var src, dst netip.Addr
	if !w.v6 {
		if len(b) < 20 || len(b) < int(b[0]&15)*4 {
			return s, false
		}
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		b = b[int(b[0]&15)*4:]
	}
	if len(b) < 20 || len(b) < int(b[12]>>4)*4 {
		return s, false
	}
	return Segment{
		Src:    netip.AddrPortFrom(src, binary.BigEndian.Uint16(b)),
		Dst:    netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:])),
		Seq:    binary.BigEndian.Uint32(b[4:]),
		Ack:    binary.BigEndian.Uint32(b[8:]),
		Length: uint32(len(b) - int(b[12]>>4)*4),
	}, true
}

// Send sends a bare acknowledgement.
func (w *Wiretap) Send(s Segment) error {
	const ack = 0x10
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, s.Src.Port())
	binary.BigEndian.PutUint16(b[2:], s.Dst.Port())
	binary.BigEndian.PutUint32(b[4:], s.Seq)
	binary.BigEndian.PutUint32(b[8:], s.Ack)
	b[12], b[13] = 5<<4, ack
	binary.BigEndian.PutUint16(b[14:], 65535)
	binary.BigEndian.PutUint16(b[16:], checksum(s.Src.Addr(), s.Dst.Addr(), b))
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(s.Dst.Addr().AsSlice()[:4])}
	if w.v6 {
		to = &unix.SockaddrInet6{Addr: s.Dst.Addr().As16()}
	}
	if err := unix.Sendto(w.fd, b, 0, to); err != nil {
		return fmt.Errorf("%s: send a segment to %s: %w", w.host.Name, s.Dst, err)
	}
	return nil
}

// checksum is TCP's, over the pseudo header too (RFC 9293, 3.1).
func checksum(src, dst netip.Addr, segment []byte) uint16 {
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(segment))
	for _, part := range [][]byte{src.AsSlice(), dst.AsSlice(), segment} {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
