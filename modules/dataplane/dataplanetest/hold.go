package dataplanetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// held is a TCP connection that a client keeps open while Services change.
type held struct {
	shot   Shot
	conn   net.Conn
	reader *bufio.Reader
}

// mostHeld is enough to have some of several kinds.
const mostHeld = 12

// hold opens connections through frontends, to be looked after by checkHeld.
func (b *bed) hold(shots []Shot) {
	b.t.Helper()
	for _, s := range shots {
		v := b.want.Decide(s.Flow)
		if len(b.held) == mostHeld {
			return
		}
		if v.Action == dataplane.Forward && s.Flow.Protocol == dataplane.TCP && returns(v, s) {
			if err := b.holdOne(s); err != nil {
				b.fail("open a connection to be kept, %s: %v", s, err)
			}
		}
	}
}

func (b *bed) holdOne(s Shot) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	conn, err := b.rig.Host(s.From).Dial(ctx, rig.TCP, netip.AddrPort{}, s.Flow.Dst)
	if err != nil {
		return err
	}
	b.t.Cleanup(func() { conn.Close() })
	h := held{s, conn, bufio.NewReader(conn)}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := h.reader.ReadString('\n'); err != nil {
		return fmt.Errorf("read greeting: %w", err)
	}
	b.held = append(b.held, h)
	return nil
}

// checkHeld says which connections have broken although their flow is still let
// through. Those of a flow that is not may break, and are let go.
func (b *bed) checkHeld() {
	b.t.Helper()
	var still []held
	for _, h := range b.held {
		if b.want.Decide(h.shot.Flow).Action != dataplane.Forward {
			continue
		}
		if err := h.echo(); err != nil {
			b.fail("the connection %s (%s) has broken: %v", h.conn.LocalAddr(), h.shot, err)
		}
		still = append(still, h)
	}
	b.held = still
}

func (h held) echo() error {
	if err := h.conn.SetDeadline(time.Now().Add(5 * patience)); err != nil {
		return err
	}
	const word = "still here"
	if _, err := h.conn.Write([]byte(word)); err != nil {
		return err
	}
	got := make([]byte, len(word))
	if _, err := io.ReadFull(h.reader, got); err != nil {
		return err
	}
	if string(got) != word {
		return fmt.Errorf("%q came back for %q", got, word)
	}
	return nil
}

// forget makes the node forget all flows but those that are held.
func (b *bed) forget() {
	b.t.Helper()
	keep := make(map[netip.AddrPort]bool)
	for _, h := range b.held {
		keep[netip.MustParseAddrPort(h.conn.LocalAddr().String())] = true
	}
	if err := b.rig.Node.ForgetFlows(func(source, _ netip.AddrPort) bool { return !keep[source] }); err != nil {
		b.t.Fatalf("%v", err)
	}
}
