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
	buffers    *sync.Pool
	mu         sync.Mutex
	half       bool // one direction is over
}

// join carries bytes both ways until both sides have said all, one of them
// breaks, or what is left after one has said all is silent for too long.
func (r *Relay) join(a, b *net.TCPConn) {
	p := &pair{halfClosed: r.cfg.HalfClosed, buffers: &r.buffers}
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

// small is how many bytes are carried through this process. More of them are a
// stream, which is spliced for as long as busy without asking again.
const (
	small = 16 << 10
	busy  = 200 * time.Millisecond
)

// copy carries bytes until the end. io.Copy splices from socket to socket
// through a pipe of the kernel: two files, which it keeps while it waits, and
// afterwards until Go collects garbage. So that ten thousand connections that
// say a word now and then do not use up the files, only streams are spliced.
func (p *pair) copy(to, from *net.TCPConn) error {
	for {
		if err := p.await(from); err != nil {
			return err
		}
		more, err := p.copySome(to, from)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && more {
			if err = from.SetReadDeadline(time.Now().Add(busy)); err != nil {
				return err
			}
			if _, err = io.Copy(to, from); err == nil {
				return nil
			}
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// copySome carries what is there, up to a limit, and tells whether there may be
// more.
func (p *pair) copySome(to, from *net.TCPConn) (more bool, err error) {
	buf := p.buffers.Get().(*[maxDatagram]byte)
	defer p.buffers.Put(buf)
	n, err := from.Read(buf[:small])
	if n > 0 {
		if _, err := to.Write(buf[:n]); err != nil {
			return false, err
		}
	}
	return n == small, err
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
