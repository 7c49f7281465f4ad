package netfilter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
)

// loop is a namespace in which the node has a few addresses and listens on UDP
// sockets on some; everything goes through the loopback device.
type loop struct {
	family  dataplane.Family
	host    *Host
	servers map[netip.AddrPort]*net.UDPConn
}

func (l *loop) addr(n byte) netip.Addr {
	if l.family == dataplane.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, n})
}

func newLoop(t *rapid.T, b string, f dataplane.Family) *loop {
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Fatalf("a new network namespace: %v: run as root", err)
	}
	l := &loop{family: f, host: NewHost(testBackend(b, f), time.Second), servers: map[netip.AddrPort]*net.UDPConn{}}
	command(t, "ip", "link", "set", "lo", "up")
	for n := byte(1); n <= 9; n++ {
		add := []string{"ip", "addr", "add", l.addr(n).String(), "dev", "lo"}
		if f == dataplane.IPv6 {
			add = append(add, "nodad")
		}
		command(t, add...)
	}
	for n := byte(1); n <= 3; n++ {
		at := netip.AddrPortFrom(l.addr(n), 53)
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		l.servers[at] = conn
	}
	l.settle(t)
	return l
}

// settle waits until all addresses are reached: a busy kernel makes the
// routes to new IPv6 addresses some time after them.
func (l *loop) settle(t *rapid.T) {
	for n := byte(1); n <= 6; n++ {
		to := netip.AddrPortFrom(l.addr(n), 53)
		want := l.fate(&Outcome{Packet: Packet{Source: netip.AddrPortFrom(l.addr(9), 0), Destination: to}})
		for end := time.Now().Add(time.Minute); l.send(t, to, 20*time.Millisecond) != want; {
			if time.Now().After(end) {
				t.Fatalf("without any rule %s is not reached", to)
			}
		}
	}
}

// send sends one packet of a new flow and tells what became of it, in the
// words of fate. It is patient with a busy machine, unless silence is legal.
func (l *loop) send(t *rapid.T, to netip.AddrPort, patience time.Duration) string {
	for _, server := range l.servers { // of what came late
		for ok := true; ok; {
			_, ok = arrived(server)
		}
	}
	from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.addr(9), 0))
	conn, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, sent := conn.Write([]byte("x"))
	for wait := time.Millisecond; wait < patience; wait *= 2 {
		for at, server := range l.servers {
			if source, ok := arrived(server); ok {
				return fmt.Sprintf("%s from %s", at, source)
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		_, read := conn.Read(make([]byte, 1))
		if errors.Is(read, syscall.ECONNREFUSED) || errors.Is(sent, syscall.ECONNREFUSED) {
			return "refused"
		}
	}
	return "silence"
}

// arrived looks for a packet without waiting: a deadline that is over before
// the read begins would find none.
func arrived(server *net.UDPConn) (from netip.Addr, ok bool) {
	raw, err := server.SyscallConn()
	if err != nil {
		return from, false
	}
	var source syscall.Sockaddr
	if err := raw.Read(func(fd uintptr) bool {
		_, source, err = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_DONTWAIT)
		return true
	}); err != nil {
		return from, false
	}
	switch a := source.(type) {
	case *syscall.SockaddrInet4:
		from = netip.AddrFrom4(a.Addr)
	case *syscall.SockaddrInet6:
		from = netip.AddrFrom16(a.Addr)
	}
	return from, from.IsValid()
}

// fate is what send should say of an outcome.
func (l *loop) fate(o *Outcome) string {
	switch {
	case o.Verdict == Dropped:
		return "silence"
	case o.Verdict == Rejected || l.servers[o.Packet.Destination] == nil:
		return "refused"
	}
	return fmt.Sprintf("%s from %s", o.Packet.Destination, o.Packet.Source.Addr())
}

func (l *loop) drawMatch(t *rapid.T) Rule {
	var r Rule
	a := l.addr(byte(rapid.IntRange(1, 6).Draw(t, "host")))
	not := rapid.IntRange(0, 4).Draw(t, "not") == 0
	low := netip.AddrFrom4([4]byte{0, 0, 0, 1})
	if l.family == dataplane.IPv6 {
		low = netip.IPv6Loopback()
	}
	orNot := func(m AddrMatch) AddrMatch { m.Not = not; return m }
	switch rapid.IntRange(0, 12).Draw(t, "match") {
	case 0, 1:
		r.Destination = orNot(MatchAddr(a))
	case 2:
		r.Destination = orNot(MatchMask(a, low))
	case 3:
		r.Source = orNot(MatchPrefix(netip.PrefixFrom(a, l.family.Bits()-3)))
	case 4:
		r.Protocol, r.DestPort = Is(dataplane.UDP), PortMatch{First: 50, Last: 60, Not: not}
	case 5:
		r.Mark = MarkMatch{Value: 1, Mask: 1, Not: not}
	case 6:
		r.Conntrack = ConntrackMatch{States: StateDNAT, NotStates: not}
	case 7:
		r.Conntrack = ConntrackMatch{States: StateNew, OrigDst: netip.PrefixFrom(a, a.BitLen())}
	case 8:
		r.Sets[0] = SetMatch{Name: "VIPS", Parts: "dst,dst", Not: not}
	case 9:
		r.Sets[0] = SetMatch{Name: "CLIENTS", Parts: "src"}
	case 10:
		r.DestType = NotLocal
	case 11:
		r.Protocol = ProtocolMatch{Number: dataplane.UDP, Not: not}
	case 12:
		r.Probability = OneIn(3)
	}
	return r
}

func (l *loop) drawTarget(t *rapid.T, table Table, next string) Target {
	to := netip.AddrPortFrom(l.addr(byte(rapid.IntRange(1, 4).Draw(t, "to"))), 0)
	targets := []Target{
		Jump(next), Jump(next), Jump(next), Goto(next), Return(), Accept(),
		OrMark(1), XorMark(3), SetXMark(0, 1), AddSet("CLIENTS", "dst", 0), DelSet("CLIENTS", "dst"),
	}
	switch table {
	case NAT:
		targets = append(targets, DNAT(to), DNAT(to), DNAT(to))
	case Filter:
		targets = append(targets, Reject(PortUnreachable(l.family)), Reject(PortUnreachable(l.family)), Drop())
	}
	return rapid.SampledFrom(targets).Draw(t, "target")
}

// drawTable draws chains that go from a hook through A and B to C.
func (l *loop) drawTable(t *rapid.T, table Table, hook string) Transaction {
	tx := Transaction{Table: table, Insert: []PlacedRule{
		{Chain: hook, Rule: Rule{Protocol: Is(dataplane.UDP), Target: Jump("A")}}, // not the ICMP errors
	}}
	chains := []string{"A", "B", "C"}
	for i, name := range chains {
		c := Chain{Name: name}
		for range rapid.IntRange(0, 4).Draw(t, string(table)+name) {
			r := l.drawMatch(t)
			r.Target = l.drawTarget(t, table, append(chains, "END")[i+1])
			c.Rules = append(c.Rules, r)
		}
		tx.Chains = append(tx.Chains, c)
	}
	tx.Chains = append(tx.Chains, chain("END"))
	return tx
}

func (l *loop) drawKernel(t *rapid.T) {
	command(t, "ipset", "create", "CLIENTS", "hash:ip", "timeout", "60", "family", inet(l.family))
	command(t, "ipset", "create", "VIPS", "hash:ip,port", "family", inet(l.family))
	for n := range byte(3) {
		command(t, "ipset", "add", "VIPS", fmt.Sprintf("%s,udp:53", l.addr(n+2)))
	}
	command(t, "ipset", "add", "CLIENTS", l.addr(byte(rapid.SampledFrom([]int{9, 1}).Draw(t, "client"))).String())
	postrouting := Rule{Mark: MatchMark(2, 2), Target: Masquerade(true)}
	for _, tx := range []Transaction{
		l.drawTable(t, NAT, "OUTPUT"),
		l.drawTable(t, Mangle, rapid.SampledFrom([]string{"OUTPUT", "POSTROUTING", "PREROUTING", "INPUT"}).Draw(t, "mangle")),
		l.drawTable(t, Filter, rapid.SampledFrom([]string{"OUTPUT", "INPUT"}).Draw(t, "filter")),
		{Table: NAT, Insert: []PlacedRule{{Chain: "POSTROUTING", Rule: postrouting}}},
	} {
		if err := l.host.Restore(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
}

func inet(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return "inet6"
	}
	return "inet"
}

// A real packet ends where the walk says that it may.
func TestPacketsGoWhereTheWalkSays(t *testing.T) {
	for _, row := range []struct {
		backend string
		family  dataplane.Family
	}{{NFT, dataplane.IPv4}, {Legacy, dataplane.IPv6}} {
		t.Run(row.backend, func(t *testing.T) {
			runtime.LockOSThread() // and never unlock: the thread ends with the test
			rapid.Check(t, func(t *rapid.T) {
				l := newLoop(t, row.backend, row.family)
				l.drawKernel(t)
				w, err := ReadWalker(t.Context(), l.host)
				if err != nil {
					t.Fatal(err)
				}
				w.IsLocal = netip.PrefixFrom(l.addr(0), l.family.Bits()-8).Contains
				// Of all addresses the kernel takes the one that is reached.
				w.MasqueradeAs = func(p Packet) netip.Addr { return p.Destination.Addr() }
				for n := byte(1); n <= 6; n++ {
					l.checkPacket(t, w, netip.AddrPortFrom(l.addr(n), 53))
				}
			})
		})
	}
}

func (l *loop) checkPacket(t *rapid.T, w *Walker, to netip.AddrPort) {
	sets, err := l.host.Sets(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sets { // the packet before may have changed them
		w.Sets[s.Name] = s
	}
	var tale strings.Builder
	legal, patience := map[string]bool{}, 5*time.Second
	for _, o := range follow(t, w, Packet{Source: netip.AddrPortFrom(l.addr(9), 40000), Destination: to, Protocol: dataplane.UDP}) {
		fate := l.fate(&o)
		if legal[fate] = true; fate == "silence" {
			patience = 10 * time.Millisecond
		}
		fmt.Fprintln(&tale, fate)
		for _, s := range o.Steps {
			fmt.Fprintln(&tale, s)
		}
	}
	if got := l.send(t, to, patience); !legal[got] {
		t.Fatalf("a packet to %s: %s, the walk says\n%s\nsets: %v", to, got, tale.String(), w.Sets)
	}
}
