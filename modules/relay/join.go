package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pair is a connection through the relay. Each direction has a goroutine.
type pair struct {
	halfClosed time.Duration
	mu         sync.Mutex
	half       bool // one direction is over
}

// join carries bytes both ways until both sides have said all, one of them
// breaks, or what is left after one has said all is silent for too long.
func join(a, b *net.TCPConn, halfClosed time.Duration) {
	p := &pair{halfClosed: halfClosed}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.carry(a, b)
	}()
	p.carry(b, a)
	<-done
	_, _ = a.Close(), b.Close() // everything has been said
}

// carry is one direction. Its end is told to the other side and not more: that
// side may go on talking.
func (p *pair) carry(to, from *net.TCPConn) {
	err := p.copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		abort(to)
		abort(from)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.half = true
	_ = to.SetReadDeadline(time.Now().Add(p.halfClosed)) // a closed one needs none
}

// busy is for how long a direction keeps its pipe without asking whether there
// is still something to carry. Many connections that wake up for a moment share
// few pipes if it is short, and a stream hardly feels it.
const busy = 20 * time.Millisecond

// copy carries bytes until the end. io.Copy splices from socket to socket
// through a pipe of the kernel, two files that it keeps until it returns. So
// that idle connections need none, it is called when there are bytes, and comes
// back soon.
func (p *pair) copy(to, from *net.TCPConn) error {
	for {
		if err := p.await(from); err != nil {
			return err
		}
		if err := from.SetReadDeadline(time.Now().Add(busy)); err != nil {
			return err
		}
		if _, err := io.Copy(to, from); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// await waits for bytes or the end.
func (p *pair) await(from *net.TCPConn) error {
	if err := p.setPatience(from); err != nil {
		return err
	}
	return readable(from)
}

func (p *pair) setPatience(from *net.TCPConn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var until time.Time
	if p.half {
		until = time.Now().Add(p.halfClosed)
	}
	return from.SetReadDeadline(until)
}

// readable waits until a read would not wait, and needs no buffer meanwhile. An
// error of the socket is told here: the kernel tells it once.
func readable(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var b [1]byte
	waitErr := raw.Read(func(fd uintptr) bool {
		_, _, err = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	if waitErr != nil {
		return waitErr
	}
	return os.NewSyscallError("recvfrom", err)
}
