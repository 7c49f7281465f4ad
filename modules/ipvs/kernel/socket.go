package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// perBatch is how many messages are sent at once. All may be refused, and
	// each refusal takes about 1 kB of a receive buffer of 208 kB.
	perBatch = 100
	// bufferSize is larger than the largest datagram of a dump, 32 kB.
	bufferSize = 64 << 10
	// answerLimit is how long an answer may take. The kernel answers before
	// it returns from the call that sends, so an answer that is not there is
	// lost.
	answerLimit = 5 * time.Second
	// interruptions is how often a dump is tried that changes meanwhile.
	interruptions = 20
)

var errInterrupted = errors.New("it changes faster than it can be read")

// socket speaks netlink with the network namespace of the thread that opened
// it. Many messages go with one call, and only the last asks for an answer:
// the kernel answers refused ones unasked.
type socket struct {
	fd     int
	seq    uint32
	out    message
	buffer []byte
}

func openSocket(protocol int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	limit := unix.NsecToTimeval(answerLimit.Nanoseconds())
	err = errors.Join(
		unix.Bind(fd, kernel), // gives it a port
		unix.Connect(fd, kernel),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		// Refusals need not repeat the message.
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("setting up a netlink socket: %w", err), unix.Close(fd))
	}
	return newSocket(fd), nil
}

func newSocket(fd int) *socket { return &socket{fd: fd, buffer: make([]byte, bufferSize)} }

func (s *socket) close() error { return unix.Close(s.fd) }

// change sends n messages, of which write writes the body, and calls refused
// for each that the kernel refuses.
func (s *socket) change(ctx context.Context, n int, write func(m *message, i int) (kind, flags uint16), refused func(i int, err unix.Errno)) error {
	for first := 0; first < n; first += perBatch {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		last := min(first+perBatch, n) - 1
		base := s.seq + 1
		s.out.buf = s.out.buf[:0]
		for i := first; i <= last; i++ {
			s.seq++
			s.out.add(s.seq, func(m *message) (kind, flags uint16) { return write(m, i) })
		}
		s.out.acknowledge()
		if err := s.send(); err != nil {
			return err
		}
		err := s.receive(func(a answer) bool {
			i := int(a.seq - base) // of an earlier, abandoned exchange: out of range
			if a.kind != unix.NLMSG_ERROR || i < 0 || i > last-first {
				return false
			}
			if err := a.errno(); err != 0 {
				refused(first+i, err)
			}
			return i == last-first
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// dump sends a question and calls visit for each answer, whose bytes are valid
// until it returns. It asks again from the start, after calling restart, when
// what it reads has changed meanwhile.
func (s *socket) dump(ctx context.Context, write func(m *message) (kind, flags uint16), restart func(), visit func(body []byte)) error {
	for range interruptions {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		restart()
		interrupted, err := s.ask(unix.NLM_F_DUMP, write, visit)
		if err != nil || !interrupted {
			return err
		}
	}
	return errInterrupted
}

// ask sends one question and reads its answers.
func (s *socket) ask(more uint16, write func(m *message) (kind, flags uint16), visit func(body []byte)) (interrupted bool, err error) {
	s.seq++
	s.out.buf = s.out.buf[:0]
	s.out.add(s.seq, func(m *message) (uint16, uint16) {
		kind, flags := write(m)
		return kind, flags | more
	})
	if err := s.send(); err != nil {
		return false, err
	}
	var result unix.Errno
	err = s.receive(func(a answer) (done bool) {
		if a.seq != s.seq {
			return false
		}
		interrupted = interrupted || a.flags&unix.NLM_F_DUMP_INTR != 0
		if a.kind == unix.NLMSG_ERROR || a.kind == unix.NLMSG_DONE {
			result = a.errno()
			return true
		}
		visit(a.body)
		return a.flags&unix.NLM_F_MULTI == 0
	})
	if err == nil && result != 0 {
		err = result
	}
	return interrupted, err
}

func (s *socket) send() error {
	for {
		_, err := unix.Write(s.fd, s.out.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("sending to the kernel: %w", err)
		}
		return nil
	}
}

// receive hands out answers until one is the last.
func (s *socket) receive(visit func(answer) (done bool)) error {
	for {
		n, err := unix.Read(s.fd, s.buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return errors.New("the kernel's answer is lost")
		case err != nil:
			return fmt.Errorf("the kernel's answer: %w", err)
		}
		for a := range answers(s.buffer[:n]) {
			if visit(a) {
				return nil
			}
		}
	}
}
