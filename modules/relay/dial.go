package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

// keepAlive finds dead peers of idle connections.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 5}
}

// Dialer opens connections with packets that carry a mark, unless it is 0.
func Dialer(mark func() uint32) DialFunc {
	return func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
		d := net.Dialer{KeepAliveConfig: keepAlive()}
		d.SetMultipathTCP(false) // splice does not know it
		if m := mark(); m != 0 {
			d.Control = func(_, _ string, c syscall.RawConn) error { return setMark(c, m) }
		}
		return d.DialContext(ctx, network, to.String())
	}
}

func setMark(c syscall.RawConn, mark uint32) error {
	var err error
	controlErr := c.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt SO_MARK", syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_MARK, int(mark)))
	})
	return errors.Join(controlErr, err)
}

// limits are how long an endpoint may take to answer, by how many have not.
// They are those of the userspace mode of old: a client waits less than four
// seconds in all.
func limits() []time.Duration {
	return []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
}

// dial connects a client to an endpoint. Those that refuse are tried once; those
// that are silent again with more patience, four times in all. The one to which
// the client is bound gets the most of it first, so that a packet that is lost,
// and sent again after a second, does not cost the session.
func (l *Listener) dial(client netip.Addr) (net.Conn, netip.AddrPort, error) {
	candidates := l.balancer.order(time.Now(), client)
	patience, err := limits(), errors.New("it has no endpoint")
	for len(candidates) > 0 && len(patience) > 0 {
		ep := candidates[0]
		candidates = candidates[1:]
		n := 0
		if l.balancer.binds(client, ep) {
			n = len(patience) - 1
		}
		var conn net.Conn
		conn, err = l.dialOne(ep, patience[n])
		if err == nil {
			l.balancer.succeeded(time.Now(), client, ep)
			return conn, ep, nil
		}
		if isOurs(err) {
			break
		}
		if isSilence(err) {
			patience = slices.Delete(patience, n, n+1)
			candidates = append(candidates, ep)
		}
		l.blame(client, ep, err)
	}
	return nil, netip.AddrPort{}, fmt.Errorf("%s: no endpoint can be reached, the last: %w", l.Route().Name, err)
}

func (l *Listener) dialOne(ep netip.AddrPort, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return l.relay.cfg.Dial(ctx, network(l.protocol, ep.Addr()), ep)
}

// blame records that an endpoint did not answer, and says so once.
func (l *Listener) blame(client netip.Addr, ep netip.AddrPort, err error) {
	if wait, news := l.balancer.failed(time.Now(), client, ep); news {
		l.relay.cfg.Log.Warn("Endpoint does not answer, others are tried first",
			"servicePort", l.Route().Name.String(), "endpoint", ep.String(), "client", client.String(),
			"leftAloneFor", wait, "err", err)
	}
}

// isSilence tells whether the endpoint may just have been slow.
func isSilence(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// isOurs tells whether this node, not the endpoint, is the cause.
func isOurs(err error) bool {
	for _, cause := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EPERM} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}
