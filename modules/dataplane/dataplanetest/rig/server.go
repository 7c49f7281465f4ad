package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Sighting is what a server says of a packet or connection that reached it.
type Sighting struct {
	// Server is the name of the host that answered.
	Server string
	// Source and Local are the two ends, as the server sees them.
	Source, Local netip.AddrPort
}

func (s Sighting) String() string {
	return fmt.Sprintf("%s %s %s", s.Server, s.Source, s.Local)
}

func parseSighting(line string) (Sighting, error) {
	parts := strings.Fields(line)
	if len(parts) < 3 {
		return Sighting{}, fmt.Errorf("not the answer of a rig's server: %q", line)
	}
	source, err1 := netip.ParseAddrPort(parts[1])
	local, err2 := netip.ParseAddrPort(parts[2])
	return Sighting{parts[0], source, local}, errors.Join(err1, err2)
}

// Serve answers on a port of the host, on all addresses of both families that
// it has or will have, until the test ends.
//
// A TCP client reads one line, the [Sighting], and then gets back what it sends.
// A UDP client gets, for each packet, the sighting, a line end and the packet.
func (h *Host) Serve(tb TB, proto Protocol, port uint16) {
	tb.Helper()
	if err := h.serve(tb, proto, port); err != nil {
		tb.Fatalf("%s: serve %s port %d: %v", h.Name, proto, port, err)
	}
}

// ServeAll serves several ports, each over TCP and UDP.
func (h *Host) ServeAll(tb TB, ports ...uint16) {
	tb.Helper()
	for _, port := range ports {
		h.Serve(tb, TCP, port)
		h.Serve(tb, UDP, port)
	}
}

func (h *Host) serve(tb TB, proto Protocol, port uint16) error {
	addr := fmt.Sprintf(":%d", port)
	if proto == UDP {
		conn, err := h.ListenUDP(tb.Context(), addr)
		if err != nil {
			return err
		}
		return h.serveUDP(tb, conn)
	}
	ln, err := h.Listen(tb.Context(), addr)
	if err != nil {
		return err
	}
	h.ServeConns(tb, ln, h.greet)
	return nil
}

// ServeHalfClosed answers on a TCP port only once the client has closed its
// side: then with the sighting and the number of bytes that it has read.
func (h *Host) ServeHalfClosed(tb TB, port uint16) {
	tb.Helper()
	ln, err := h.Listen(tb.Context(), fmt.Sprintf(":%d", port))
	if err != nil {
		tb.Fatalf("%s: serve half-closed port %d: %v", h.Name, port, err)
	}
	h.ServeConns(tb, ln, func(conn *net.TCPConn) {
		n, err := io.Copy(io.Discard, conn)
		if err == nil {
			fmt.Fprintf(conn, "%s %d\n", h.sighting(conn), n)
		}
	})
}

// ServeConns answers each connection of a listener with a function, until the
// test ends; then it closes all of them and waits.
func (h *Host) ServeConns(tb TB, ln net.Listener, answer func(*net.TCPConn)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	tb.Cleanup(func() {
		cancel()
		ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				answer(conn.(*net.TCPConn))
			})
		}
	})
}

func (h *Host) sighting(conn net.Conn) Sighting {
	return Sighting{h.Name, unmapped(conn.RemoteAddr()), unmapped(conn.LocalAddr())}
}

func (h *Host) greet(conn *net.TCPConn) {
	if _, err := fmt.Fprintln(conn, h.sighting(conn)); err == nil {
		io.Copy(conn, bufio.NewReader(conn)) //nolint:errcheck // the client has left
	}
}

// serveUDP answers from the address that was asked. The kernel hands it over
// with each packet, and takes it back with the answer.
func (h *Host) serveUDP(tb TB, conn *net.UDPConn) error {
	if err := wantDestination(conn); err != nil {
		return err
	}
	local := unmapped(conn.LocalAddr())
	var wg sync.WaitGroup
	tb.Cleanup(func() {
		conn.Close()
		wg.Wait()
	})
	wg.Go(func() {
		packet, control := make([]byte, 64<<10), make([]byte, 128)
		for {
			n, controlLen, _, source, err := conn.ReadMsgUDPAddrPort(packet, control)
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				continue // an ICMP error for an earlier answer
			}
			asked := destination(control[:controlLen])
			s := Sighting{h.Name, unmap(source), netip.AddrPortFrom(asked.Unmap(), local.Port())}
			answer := append([]byte(s.String()+"\n"), packet[:n]...)
			conn.WriteMsgUDPAddrPort(answer, answerFrom(asked), source) //nolint:errcheck // the client sees it
		}
	})
	return nil
}

// wantDestination asks for the destination of each packet; for a socket of both
// families it is always told in IPv6's form.
func wantDestination(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return errors.Join(err, optErr)
}

func destination(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16 {
			return netip.AddrFrom16([16]byte(m.Data[:16]))
		}
	}
	return netip.Addr{}
}

// answerFrom leaves the choice of the interface to the routes.
func answerFrom(local netip.Addr) []byte {
	if !local.IsValid() {
		return nil
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: local.As16()})
}

func unmapped(a net.Addr) netip.AddrPort {
	ap, _ := netip.ParseAddrPort(a.String())
	return unmap(ap)
}

func unmap(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
