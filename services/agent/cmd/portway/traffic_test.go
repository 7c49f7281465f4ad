package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// ways are those in which the Service of newSwitchSite is reached.
func (s *site) ways() []rig.Probe {
	return []rig.Probe{
		{From: s.rig.Client, Proto: rig.TCP, To: vip, Timeout: patience},
		{From: s.rig.Client, Proto: rig.TCP, To: vip6, Timeout: patience},
		{From: s.rig.Node, Proto: rig.TCP, To: vip, Timeout: patience},
		{From: s.rig.Up, Proto: rig.TCP, To: nodePort, Timeout: patience},
	}
}

// patience is how long an answer may take on a busy machine. A SYN that is lost
// is sent again after a second, so what is found is what users see: connections
// that are refused, or dropped for seconds.
const patience = 10 * time.Second

// pace is how often each way connects: more would take from the agent the one
// processor of a second kernel.
const pace = 50 * time.Millisecond

// phase is a part of a switch.
type phase int32

const (
	before  phase = iota // the old mode works
	between              // from its end to the first good Sync of the new one
	after
	phases
)

func (p phase) String() string { return [...]string{"before", "between", "after"}[p] }

// traffic connects all the time, in every way.
type traffic struct {
	t       *testing.T
	ways    []rig.Probe
	lenient bool // connections may fail between
	phase   atomic.Int32
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu    sync.Mutex
	moved *sync.Cond
	// answered counts the connections by way and by the phase in which they
	// were begun; those that were ended in the same.
	answered [][phases]int
}

// traffic starts it. If the old mode does not keep flows, connections may fail
// between; in the other phases they never may.
func (s *site) traffic(keepsFlows bool) *traffic {
	ctx, cancel := context.WithCancel(s.t.Context())
	tr := &traffic{t: s.t, ways: s.ways(), lenient: !keepsFlows, cancel: cancel}
	tr.moved = sync.NewCond(&tr.mu)
	tr.answered = make([][phases]int, len(tr.ways))
	for i := range tr.ways {
		tr.wg.Go(func() {
			next := time.NewTicker(pace)
			defer next.Stop()
			for ctx.Err() == nil {
				tr.connect(ctx, i)
				select {
				case <-ctx.Done():
				case <-next.C:
				}
			}
		})
	}
	s.t.Cleanup(tr.end)
	return tr
}

func (tr *traffic) connect(ctx context.Context, i int) {
	begun := phase(tr.phase.Load())
	r := tr.ways[i].Send(ctx)
	ended := phase(tr.phase.Load())
	if ctx.Err() != nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if r.Outcome == rig.Answered && begun == ended {
		tr.answered[i][begun]++
	}
	excused := tr.lenient && (begun == between || ended == between)
	if r.Outcome != rig.Answered && !excused {
		tr.t.Errorf("%s, begun %s, ended %s: %s", tr.ways[i], begun, ended, r)
	}
	tr.moved.Broadcast()
}

// flows waits until each way has been answered some times in a phase.
func (tr *traffic) flows(p phase) {
	tr.t.Helper()
	const enough = 5
	late := false
	defer time.AfterFunc(30*time.Second, func() {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		late = true
		tr.moved.Broadcast()
	}).Stop()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for i := range tr.ways {
		for tr.answered[i][p] < enough {
			if late {
				tr.t.Fatalf("%s: only %d answers %s in 30 seconds", tr.ways[i], tr.answered[i][p], p)
			}
			tr.moved.Wait()
		}
	}
}

func (tr *traffic) enter(p phase) { tr.phase.Store(int32(p)) }

func (tr *traffic) end() {
	tr.cancel()
	tr.wg.Wait()
}

// held is a connection that stays open.
type held struct {
	way    rig.Probe
	conn   net.Conn
	reader *bufio.Reader
}

// hold opens a connection in each way.
func (s *site) hold() []held {
	s.t.Helper()
	var all []held
	for _, w := range s.ways() {
		conn, err := w.From.Dial(s.t.Context(), w.Proto, netip.AddrPort{}, w.To)
		if err != nil {
			s.t.Fatalf("%s: %v", w, err)
		}
		s.t.Cleanup(func() { conn.Close() })
		h := held{w, conn, bufio.NewReader(conn)}
		if _, err := h.line(); err != nil { // the greeting
			s.t.Fatalf("%s: %v", w, err)
		}
		all = append(all, h)
	}
	return all
}

func (h held) line() (string, error) {
	if err := h.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	return h.reader.ReadString('\n')
}

// echo says something and waits to hear it.
func (h held) echo() error {
	const words = "still there?\n"
	if _, err := h.conn.Write([]byte(words)); err != nil {
		return err
	}
	heard, err := h.line()
	if err == nil && heard != words {
		err = fmt.Errorf("heard %q", heard)
	}
	return err
}
