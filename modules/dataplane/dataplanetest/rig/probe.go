package rig

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Outcome is the kind of end that a probe comes to.
type Outcome string

// The outcomes of a probe.
const (
	// Answered: a server of the rig answered.
	Answered Outcome = "answered"
	// Refused: a reset or an ICMP port unreachable came back.
	Refused Outcome = "refused"
	// Silent: nothing came back in time.
	Silent Outcome = "silent"
	// Failed: something else happened; see the error.
	Failed Outcome = "failed"
)

// Result is the end of one probe.
type Result struct {
	Outcome Outcome
	// Sighting is what the server said, if one answered.
	Sighting
	// Err is why not.
	Err error
}

func (r Result) String() string {
	switch r.Outcome {
	case Answered:
		return fmt.Sprintf("answered by %s", r.Sighting)
	case Failed:
		return fmt.Sprintf("failed: %v", r.Err)
	default:
		return string(r.Outcome)
	}
}

// Probe is one question to a server.
type Probe struct {
	From  *Host
	Proto Protocol
	To    netip.AddrPort
	// Source chooses address and port to send from; both parts are optional.
	Source netip.AddrPort
	// Timeout is how long nothing may come back before it counts as silence;
	// 0 means DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout is much longer than any answer inside one machine takes.
const DefaultTimeout = 300 * time.Millisecond

func (p Probe) String() string {
	return fmt.Sprintf("%s from %s to %s", p.Proto, p.From.Name, p.To)
}

// Send sends the probe and waits for its end.
func (p Probe) Send(ctx context.Context) Result {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.Timeout, DefaultTimeout))
	defer cancel()
	conn, err := p.From.Dial(ctx, p.Proto, p.Source, p.To)
	if err != nil {
		return failure(err)
	}
	defer conn.Close()
	return Ask(ctx, conn)
}

// Ask is a probe over a connection that exists already. A TCP server answers
// only the first one.
func Ask(ctx context.Context, conn net.Conn) Result {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(DefaultTimeout)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return failure(err)
	}
	if _, isUDP := conn.(*net.UDPConn); isUDP {
		if _, err := conn.Write([]byte("probe")); err != nil && !isFiltered(err) {
			return failure(err)
		}
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return failure(err)
	}
	seen, err := parseSighting(line)
	if err != nil {
		return failure(err)
	}
	return Result{Outcome: Answered, Sighting: seen}
}

// SendAll sends many probes at once and returns their ends in the same order.
func SendAll(ctx context.Context, probes []Probe) []Result {
	results := make([]Result, len(probes))
	Each(len(probes), func(i int) { results[i] = probes[i].Send(ctx) })
	return results
}

// atOnce is the number of probes on their way at one time. Each has a thread,
// and must be answered in a short time by the same processors.
var atOnce = min(48*runtime.NumCPU(), 128)

// Each calls f for every number below n, many at once, and waits.
func Each(n int, f func(i int)) {
	turn := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range n {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			f(i)
		})
	}
	wg.Wait()
}

func failure(err error) Result {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Result{Outcome: Refused, Err: err}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return Result{Outcome: Silent, Err: err}
	default:
		return Result{Outcome: Failed, Err: err}
	}
}

// isFiltered tells whether the sender's own rules took the packet. A refusal
// follows, or nothing.
func isFiltered(err error) bool { return errors.Is(err, syscall.EPERM) }

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
