package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

func (l *Listener) listenTCP(ctx context.Context, at netip.AddrPort) error {
	config := net.ListenConfig{KeepAliveConfig: keepAlive()}
	config.SetMultipathTCP(false) // splice does not know it
	socket, err := config.Listen(ctx, network(l.protocol, at.Addr()), at.String())
	if err != nil {
		return err
	}
	tcp := socket.(*net.TCPListener)
	l.socket, l.addr = tcp, addrOf(tcp.Addr())
	go l.accept(tcp) //nolint:contextcheck // flows outlive the call that opens their listener
	return nil
}

func addrOf(a net.Addr) netip.AddrPort {
	var p netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		p = a.AddrPort()
	case *net.UDPAddr:
		p = a.AddrPort()
	}
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

// accept takes connections until the listener is closed.
func (l *Listener) accept(socket *net.TCPListener) {
	var rest pause
	for {
		conn, err := socket.AcceptTCP()
		switch {
		case err == nil:
			rest = 0
			l.relay.accepted.Add(1)
			go l.serve(conn)
		case errors.Is(err, net.ErrClosed):
			return
		case !rest.take(l, err):
			return
		}
	}
}

// pause is how long a listener rests that cannot take more, as when files run
// out: who waits in the queue of the socket is served later.
type pause time.Duration

func (p *pause) take(l *Listener, err error) bool {
	if *p == 0 {
		l.relay.cfg.Log.Error("Cannot take more flows, clients wait", "servicePort", l.Route().Name.String(), "err", err)
	}
	*p = min(max(2**p, pause(5*time.Millisecond)), pause(time.Second))
	timer := time.NewTimer(time.Duration(*p))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.closed:
		return false
	}
}

// serve relays one connection. A client that no endpoint answers gets a reset.
func (l *Listener) serve(client *net.TCPConn) {
	conn, _, err := l.dial(addrOf(client.RemoteAddr()).Addr())
	if err != nil {
		l.relay.cfg.Log.Debug("Connection refused", "client", client.RemoteAddr().String(), "err", err)
		abort(client)
		return
	}
	l.relay.join(client, conn.(*net.TCPConn))
}

// abort closes a connection with a reset.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0) // if it fails, so does the connection
	_ = c.Close()
}
