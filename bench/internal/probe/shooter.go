package probe

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/bench/internal/network"
)

// Shot is one attempt to connect.
type Shot struct {
	To            netip.AddrPort
	Started, Done time.Time
	Err           error
}

// Shooter opens connections one after the other, without waiting for the ones
// before, and closes each as soon as it is there.
type Shooter struct {
	Host *network.Host
	Pace time.Duration // from one connection to the next
	// Patience is how long a connection may take. Later ones are tried in the mean
	// time, so it does not make a measurement coarser, but many open ones cost time.
	Patience time.Duration
	// Next is where the next connection goes; invalid for nowhere.
	Next func() netip.AddrPort
	// Told is called with each connection once its fate is known; nil for nobody.
	Told func(Shot)
}

// Run shoots until ctx ends.
func (s *Shooter) Run(ctx context.Context) error {
	return s.Host.Do(func() error {
		var open []flying
		defer func() {
			for _, f := range open {
				unix.Close(f.fd)
			}
		}()
		next := time.Now()
		for ctx.Err() == nil {
			if to := s.Next(); to.IsValid() {
				f, err := launch(to)
				if err != nil {
					return err
				}
				open = append(open, f)
			}
			// Late shots are not made up for: they would come in bursts.
			next = later(next.Add(s.Pace), time.Now())
			var err error
			if open, err = s.watch(open, next); err != nil {
				return err
			}
		}
		return nil
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

type flying struct {
	fd int
	Shot
}

// launch begins to connect.
func launch(to netip.AddrPort) (flying, error) {
	fd, err := socket(unix.SOCK_NONBLOCK)
	if err != nil {
		return flying{}, err
	}
	f := flying{fd: fd, Shot: Shot{To: to, Started: time.Now()}}
	err = unix.Connect(fd, sockaddr(to))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		f.Err = err // told when it is looked at
	}
	return f, nil
}

// watch looks after the open connections until it is time for the next one.
func (s *Shooter) watch(open []flying, until time.Time) ([]flying, error) {
	for {
		fds := make([]unix.PollFd, len(open))
		for i, f := range open {
			fds[i] = unix.PollFd{Fd: int32(f.fd), Events: unix.POLLOUT}
		}
		wait := unix.NsecToTimespec(int64(max(0, time.Until(until))))
		if _, err := unix.Ppoll(fds, &wait, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return open, err
		}
		now := time.Now()
		kept := open[:0]
		for i, f := range open {
			switch {
			case f.Err != nil:
			case fds[i].Revents != 0:
				f.Err = established(soError(f.fd))
			case now.Sub(f.Started) > s.Patience:
				f.Err = unix.ETIMEDOUT
			default:
				kept = append(kept, f)
				continue
			}
			f.Done = now
			unix.Close(f.fd)
			if s.Told != nil {
				s.Told(f.Shot)
			}
		}
		open = kept
		if !now.Before(until) {
			return open, nil
		}
	}
}

// socket makes one whose connections leave nothing behind when they are closed.
func socket(flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func soError(fd int) error {
	number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if number != 0 {
		return unix.Errno(number)
	}
	return nil
}

// established takes a reset for what it is here: the far side was there, and has
// closed the connection before this side has looked. A Service that is not there
// refuses.
func established(err error) error {
	if errors.Is(err, unix.ECONNRESET) {
		return nil
	}
	return err
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
}
