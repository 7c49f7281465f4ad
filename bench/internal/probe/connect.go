package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/bench/internal/network"
)

// Way is a client and where it connects to.
type Way struct {
	From *network.Host
	To   netip.AddrPort
}

// Histogram is one of times up to ten minutes, in nanoseconds, exact to 0.1 %.
func Histogram() *hdr.Histogram { return hdr.New(1, int64(10*time.Minute), 3) }

// Connect measures how long connect takes for a new flow, count times each way.
// The ways take turns, so that what else the machine does meets all alike.
func Connect(ctx context.Context, ways []Way, count int) ([]*hdr.Histogram, error) {
	const turn = 50
	times := make([]*hdr.Histogram, len(ways))
	for i := range times {
		times[i] = Histogram()
	}
	for done := 0; done < count; done += turn {
		for i, w := range ways {
			if err := w.From.Do(func() error { return w.connect(ctx, turn, times[i]) }); err != nil {
				return nil, err
			}
		}
	}
	return times, nil
}

// connect measures some connections, from where it is called.
func (w Way) connect(ctx context.Context, count int, times *hdr.Histogram) error {
	for range count {
		took, err := connect(ctx, w.To)
		if err != nil {
			return err
		}
		if err := times.RecordValue(int64(took)); err != nil {
			return err
		}
	}
	return nil
}

// limit is how long one connection, or one byte, may take before it is an error.
const limit = 10 * time.Second

// connect measures one connection.
func connect(ctx context.Context, to netip.AddrPort) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	fd, err := socket(0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(int64(limit))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return 0, err
	}
	start := time.Now()
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) { // a signal of Go's scheduler; the same connection is waited for again
		err = established(unix.Connect(fd, sockaddr(to)))
	}
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	return took, nil
}

// Rate measures how many connections a second two threads open, for a while and
// at most so many.
func Rate(ctx context.Context, w Way, during time.Duration, most int64) (float64, error) {
	var count atomic.Int64
	start := time.Now()
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = w.From.Do(func() error {
				for time.Since(start) < during && count.Load() < most {
					if _, err := connect(ctx, w.To); err != nil {
						return err
					}
					count.Add(1)
				}
				return nil
			})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(count.Load()) / time.Since(start).Seconds(), nil
}

// Dial opens one connection that stays.
func Dial(ctx context.Context, w Way) (c net.Conn, err error) {
	err = w.From.Do(func() error {
		c, err = (&net.Dialer{Timeout: limit}).DialContext(ctx, "tcp4", w.To.String())
		return err
	})
	return c, err
}

// Throughput is the bytes per second of one connection to a Drain port.
func Throughput(ctx context.Context, w Way, during time.Duration) (float64, error) {
	c, err := Dial(ctx, w)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	chunk := make([]byte, 256<<10)
	start := time.Now()
	sent := 0
	for time.Since(start) < during {
		n, err := c.Write(chunk)
		if err != nil {
			return 0, err
		}
		sent += n
	}
	return float64(sent) / time.Since(start).Seconds(), nil
}

// RoundTrips measures how long one byte takes to an Echo port and back.
func RoundTrips(ctx context.Context, w Way, count int) (*hdr.Histogram, error) {
	c, err := Dial(ctx, w)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	times := Histogram()
	for range count {
		took, err := Trip(c)
		if err != nil {
			return nil, err
		}
		if err := times.RecordValue(int64(took)); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// Trip sends one byte through a connection to an Echo port and waits for it.
func Trip(c net.Conn) (time.Duration, error) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	start := time.Now()
	var b [1]byte
	if _, err := c.Write(b[:]); err != nil {
		return 0, err
	}
	if _, err := c.Read(b[:]); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}
