package rig

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Ping sends one ICMP echo request from the host. Refused means that an ICMP
// port unreachable came back. Timeout 0 means DefaultTimeout.
func (h *Host) Ping(ctx context.Context, to netip.Addr, timeout time.Duration) Result {
	socket, err := h.openPing(to)
	if err != nil {
		return failure(err)
	}
	defer socket.Close()
	deadline := time.Now().Add(cmp.Or(timeout, DefaultTimeout))
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := socket.SetDeadline(deadline); err != nil {
		return failure(err)
	}
	if _, err := socket.Write(echoRequest(to)); err != nil && !isFiltered(err) {
		return failure(err)
	}
	if _, err := socket.Read(make([]byte, 64)); err != nil {
		return failure(err)
	}
	return Result{Outcome: Answered}
}

// openPing opens a connected ping socket: only such a one learns of refusals.
func (h *Host) openPing(to netip.Addr) (*os.File, error) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if to.Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	var socket *os.File
	err := h.onNetwork(func() error {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return fmt.Errorf("open ping socket: %w", err)
		}
		socket = os.NewFile(uintptr(fd), "ping")
		if err := unix.Connect(fd, sockaddr(to)); err != nil {
			socket.Close()
			return fmt.Errorf("connect ping socket to %s: %w", to, err)
		}
		return nil
	})
	return socket, err
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// echoRequest is an ICMP header; the kernel fills in checksum and identifier.
func echoRequest(to netip.Addr) []byte {
	const echo4, echo6 = 8, 128
	kind := byte(echo4)
	if to.Is6() {
		kind = echo6
	}
	return []byte{kind, 0, 0, 0, 0, 0, 0, 1}
}
