package dataplanetest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// What follows are laws about the firewalls, marks and packets of others that a
// mode meets on a node.

// public is a Service that everybody is masqueraded at.
const public = `
node detect=ClusterCIDR
web TCP 80->8080 ips=10.96.0.10,fd00:96::10 nodePort=30080 endpoints=e1
`

// firewall shows that masquerading opens a FORWARD chain that drops by default.
// Proves S3.11.
func firewall(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, public)
	for f := range b.planes {
		b.mustRun(cfg.tool(f, ""), "-w", "-P", "FORWARD", "DROP")
		for _, from := range []string{"up", "e1"} {
			if got := b.askOne(from, b.nodePort(f)); got.Outcome != rig.Answered {
				t.Errorf("%s %s, and FORWARD drops: it is %s", from, b.nodePort(f), got)
			}
		}
		e1 := netip.AddrPortFrom(b.rig.Host("e1").Addr(b.nodePort(f).Addr()), targetPorts[0])
		if got := send(t.Context(), b.rig, Shot{From: "up", Flow: b.state.flow("up", e1, dataplane.TCP)}, rig.DefaultTimeout); got.Outcome != rig.Silent {
			t.Errorf("%s: FORWARD does not drop what is no Service's: it is %s", f, got)
		}
	}
}

// marks shows that the bits of others are on packets as before when they leave the
// node, or come to a relay on it (kubernetes#19983). That ours is gone then cannot
// be seen by rules of iptables: each mode has a test of its own.
// Proves S3.12.
func marks(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, public)
	for f := range b.planes {
		table := []string{cfg.tool(f, ""), "-w", "-t", "mangle"}
		b.mustRun(append(table, "-I", "PREROUTING", "1", "-i", "eth0", "-p", "tcp", "-j", "MARK", "--set-xmark", "0xff/0xff")...)
		for _, chain := range []string{"FORWARD", "INPUT"} {
			b.mustRun(append(table, "-A", chain, "-i", "eth0", "-p", "tcp", "-m", "mark", "--mark", "0xff/0xff")...)
			b.mustRun(append(table, "-A", chain, "-i", "eth0", "-p", "tcp", "-m", "mark", "!", "--mark", "0xff/0xff")...)
		}
		b.mustRun(append(table, "-A", "POSTROUTING", "-s", b.rig.Host("up").Addr(b.nodePort(f).Addr()).String(), "-p", "tcp", "-m", "mark", "!", "--mark", "0xff/0xff")...)
		if got := b.askOne("up", b.nodePort(f)); got.Outcome != rig.Answered {
			t.Fatalf("up %s is %s", b.nodePort(f), got)
		}
		rules := b.mustRun(append(table, "-S", "-v")...)
		kept := false
		for line := range strings.Lines(rules) {
			seen := strings.Contains(line, "0xff/0xff") && !strings.Contains(line, "MARK") && !strings.Contains(line, "-c 0 0")
			if seen && strings.Contains(line, "! --mark") {
				t.Errorf("%s: a packet has lost the bits of others: %s", f, line)
			}
			kept = kept || seen
		}
		if !kept {
			t.Errorf("%s: no packet has the bits of others:\n%s", f, rules)
		}
	}
}

// invalid shows that a packet which connection tracking calls invalid does not
// break a flow: not translated back, it would be answered by a reset
// (kubernetes#74839).
// Proves S3.13.
func invalid(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, public)
	for f := range b.planes {
		if err := b.survivesInvalid("c", netip.AddrPortFrom(clusterIPOf(b.service("web"), f), 80)); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// survivesInvalid opens a connection, lets its endpoint send what is far out of
// its window, and expects it to go on.
func (b *bed) survivesInvalid(from string, to netip.AddrPort) error {
	server := b.rig.Host("e1")
	tap := server.Wiretap(b.t, to.Addr())
	conn, err := b.greeted(from, 0, to)
	if err != nil {
		return err
	}
	defer conn.Close()
	for round := range 3 {
		if _, err := conn.Write([]byte{'x'}); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		seen, err := tap.Next(targetPorts[0], patience, func(s rig.Segment) bool { return s.Length == 1 })
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		client := b.sourceOf(conn, seen)
		err = tap.Send(rig.Segment{
			Src: netip.AddrPortFrom(server.Addr(to.Addr()), targetPorts[0]), Dst: client,
			Seq: seen.Ack + 1<<30, Ack: seen.Seq + seen.Length,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sourceOf is whose segments an endpoint sees: the client's, or the relay's on
// the node.
func (b *bed) sourceOf(conn net.Conn, seen rig.Segment) netip.AddrPort {
	local := netip.MustParseAddrPort(conn.LocalAddr().String())
	if local.Port() == seen.Src.Port() {
		return local
	}
	return netip.AddrPortFrom(b.rig.Node.Addr(local.Addr()), seen.Src.Port())
}

func (b *bed) service(name string) *dataplane.ServicePort {
	for sp := range b.want.ServicePorts() {
		if sp.Name.Name == name {
			return sp
		}
	}
	b.t.Fatalf("the state has no Service %s", name)
	return nil
}

// nodePort is where the first node's NodePort of public answers.
func (b *bed) nodePort(f dataplane.Family) netip.AddrPort {
	return netip.AddrPortFrom(nodeAddrs(f)[0], 30080)
}

func (b *bed) askOne(from string, to netip.AddrPort) rig.Result {
	return send(b.t.Context(), b.rig, Shot{From: from, Flow: b.state.flow(from, to, dataplane.TCP)}, patience)
}

// mustRun runs a command on the node.
func (b *bed) mustRun(argv ...string) string {
	b.t.Helper()
	out, err := b.rig.Node.Run(b.t.Context(), argv...)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	return out
}
