package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// maxDatagram is what the length field of UDP allows.
const maxDatagram = 65535

// session is an exchange of datagrams between one socket of a client and an
// endpoint.
type session struct {
	listener *Listener
	client   netip.AddrPort
	to       netip.AddrPort
	conn     *net.UDPConn
	used     atomic.Int64 // in nanoseconds since the epoch
	// first is the last datagram of the client that nobody has answered yet,
	// for the next endpoint if this one refuses; tries counts endpoints.
	first []byte
	tries int
}

func (l *Listener) listenUDP(ctx context.Context, at netip.AddrPort) error {
	socket, err := new(net.ListenConfig).ListenPacket(ctx, network(l.protocol, at.Addr()), at.String())
	if err != nil {
		return err
	}
	udp := socket.(*net.UDPConn)
	l.socket, l.addr = udp, addrOf(udp.LocalAddr())
	go l.receive(udp) //nolint:contextcheck // flows outlive the call that opens their listener
	return nil
}

// receive takes datagrams of clients until the listener is closed.
func (l *Listener) receive(socket *net.UDPConn) {
	buf := make([]byte, maxDatagram)
	var rest pause
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil:
			rest = 0
			l.forward(socket, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buf[:n], 0)
		case errors.Is(err, net.ErrClosed):
			return
		case !rest.take(l, err):
			return
		}
	}
}

// forward sends a client's datagram to its endpoint. Datagrams may be lost, and
// one that finds no endpoint is.
func (l *Listener) forward(socket *net.UDPConn, client netip.AddrPort, datagram []byte, tries int) {
	for ; tries <= len(l.Route().Endpoints); tries++ {
		s := l.relay.sessions.find(l, client)
		if s == nil {
			if s = l.open(socket, client, datagram, tries); s == nil {
				return
			}
		}
		s.used.Store(time.Now().UnixNano())
		_, err := s.conn.Write(datagram)
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, net.ErrClosed) {
			return
		}
		l.relay.sessions.drop(s)
		if errors.Is(err, syscall.ECONNREFUSED) {
			l.blame(client.Addr(), s.to, err)
		}
	}
}

// open begins an exchange.
func (l *Listener) open(socket *net.UDPConn, client netip.AddrPort, datagram []byte, tries int) *session {
	conn, to, err := l.dial(client.Addr())
	if err != nil {
		l.relay.cfg.Log.Debug("Datagram lost", "client", client.String(), "err", err)
		return nil
	}
	s := &session{listener: l, client: client, to: to, conn: conn.(*net.UDPConn), first: append([]byte(nil), datagram...), tries: tries}
	s.used.Store(time.Now().UnixNano())
	if !l.relay.sessions.add(s) {
		return nil
	}
	go l.answer(socket, s)
	return s
}

// answer carries an endpoint's datagrams back until the exchange is idle.
func (l *Listener) answer(socket *net.UDPConn, s *session) {
	defer l.relay.sessions.drop(s)
	answered := false
	for {
		idle := time.Unix(0, s.used.Load()).Add(l.relay.cfg.UDPIdle)
		if err := s.conn.SetReadDeadline(idle); err != nil {
			return
		}
		err := l.answerOne(socket, s)
		switch {
		case err == nil:
			answered, s.first = true, nil
			s.used.Store(time.Now().UnixNano())
		case errors.Is(err, os.ErrDeadlineExceeded) && s.used.Load()+int64(l.relay.cfg.UDPIdle) > time.Now().UnixNano():
		case errors.Is(err, syscall.ECONNREFUSED):
			l.blame(s.client.Addr(), s.to, err)
			l.relay.sessions.drop(s)
			if !answered {
				l.forward(socket, s.client, s.first, s.tries+1)
			}
			return
		default:
			return
		}
	}
}

// answerOne carries one datagram, and takes a buffer only when there is one.
func (l *Listener) answerOne(socket *net.UDPConn, s *session) error {
	if err := readable(s.conn); err != nil {
		return err
	}
	buf := l.relay.buffers.Get().(*[maxDatagram]byte)
	defer l.relay.buffers.Put(buf)
	n, err := s.conn.Read(buf[:])
	if err != nil {
		return err
	}
	_, err = socket.WriteToUDPAddrPort(buf[:n], s.client)
	return err
}
