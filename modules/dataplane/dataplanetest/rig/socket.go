package rig

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Protocol is what a probe or server speaks.
type Protocol string

// The protocols of probes and servers.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// Dial opens a TCP connection or a connected UDP socket from the host. source
// chooses address and port to send from; its parts may be unset.
func (h *Host) Dial(ctx context.Context, proto Protocol, source, to netip.AddrPort) (conn net.Conn, err error) {
	dialer := net.Dialer{LocalAddr: localAddr(proto, source), Control: reuseAddr}
	dialer.SetMultipathTCP(false)
	// A dialer that has a single address to try does so on this thread.
	err = h.onNetwork(func() error {
		conn, err = dialer.DialContext(ctx, string(proto), to.String())
		return err
	})
	return conn, err
}

// DialUDP opens a UDP socket connected to one address, with a chosen source
// port unless it is 0. It may be kept, to send packets of one flow.
func (h *Host) DialUDP(ctx context.Context, sourcePort uint16, to netip.AddrPort) (*net.UDPConn, error) {
	conn, err := h.Dial(ctx, UDP, netip.AddrPortFrom(netip.Addr{}, sourcePort), to)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// Listen opens a TCP listener in the host; "" or ":80" listen on every address
// of both families.
func (h *Host) Listen(ctx context.Context, addr string) (ln net.Listener, err error) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	err = h.onNetwork(func() error {
		ln, err = config.Listen(ctx, "tcp", addr)
		return err
	})
	return ln, err
}

// ListenUDP opens a UDP socket in the host.
func (h *Host) ListenUDP(ctx context.Context, addr string) (conn *net.UDPConn, err error) {
	err = h.onNetwork(func() error {
		c, err := new(net.ListenConfig).ListenPacket(ctx, "udp", addr)
		if err == nil {
			conn = c.(*net.UDPConn)
		}
		return err
	})
	return conn, err
}

func localAddr(proto Protocol, source netip.AddrPort) net.Addr {
	if source == (netip.AddrPort{}) {
		return nil
	}
	if proto == UDP {
		return &net.UDPAddr{IP: source.Addr().AsSlice(), Port: int(source.Port())}
	}
	return &net.TCPAddr{IP: source.Addr().AsSlice(), Port: int(source.Port())}
}

// reuseAddr lets probes choose the same source port one after the other.
func reuseAddr(_, _ string, c syscall.RawConn) (err error) {
	controlErr := c.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
