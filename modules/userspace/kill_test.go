package userspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// childSite makes the test's program a process of its own that runs a plane, to
// be killed. It holds family, back end, endpoint and the Services' addresses.
const childSite = "PORTWAY_USERSPACE_CHILD"

// child runs a plane until it is killed.
func child(words []string) error {
	s := &site{family: dataplane.IPv4, backend: words[1]}
	if words[0] == dataplane.IPv6.String() {
		s.family = dataplane.IPv6
	}
	b := dataplane.Empty().Edit()
	b.SetNode(s.node(netip.MustParseAddr(words[2])))
	to := netip.MustParseAddrPort(words[3])
	for i, p := range relayed() {
		b.Put(s.service(strings.ToLower(p.String()), p, netip.MustParseAddr(words[4+i]), to))
	}
	want, err := b.Build()
	if err != nil {
		return err
	}
	p, err := openWith(context.Background(), Options{Backend: s.backend}, s.family)
	if err != nil {
		return err
	}
	if _, err := p.Sync(context.Background(), dataplane.SyncRequest{Now: time.Now(), Want: want}); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startChild starts such a process and waits until it serves.
func (s *site) startChild() *exec.Cmd {
	s.Helper()
	program, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), program)
	cmd.Env = append(os.Environ(), childSite+"="+strings.Join([]string{
		s.family.String(), s.backend, s.addr(s.Node).String(), s.at(s.Endpoints[0]).String(), s.vip(1).String(), s.vip(2).String(),
	}, " "))
	cmd.Stderr = os.Stderr
	_, err1 := cmd.StdinPipe() // open as long as cmd is
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		s.Fatal(err)
	}
	if err := s.Node.Do(cmd.Start); err != nil {
		s.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		s.Fatalf("the process says %q, %v", line, err)
	}
	return cmd
}

// kill -9 with traffic on: connections break at once and do not hang, nobody is
// let through to anything while no process runs, and the next one serves all,
// the datagrams of a client that kept its socket too.
// Proves S7.2.
func TestKilledWithTraffic(t *testing.T) {
	onSites(t, func(s *site) {
		web, dns := netip.AddrPortFrom(s.vip(1), 80), netip.AddrPortFrom(s.vip(2), 80)
		victim := s.startChild()
		conn, reader := s.greeted(web)
		datagrams, err := s.Client.DialUDP(s.Context(), 0, dns)
		if err != nil {
			s.Fatal(err)
		}
		defer datagrams.Close()
		if got := s.tell(datagrams); got.Server != "e1" {
			s.Fatalf("datagrams: the client is %s", got)
		}

		if err := victim.Process.Kill(); err != nil {
			s.Fatal(err)
		}
		if err := victim.Wait(); err == nil {
			s.Fatal("the process ends by itself")
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			s.Fatal(err)
		}
		if line, err := reader.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			s.Errorf("the connection of a dead process reads %q, %v; want its end", line, err)
		}
		for _, from := range []*rig.Host{s.Client, s.Up, s.Node} {
			if got := s.ask(from, web); got.Outcome != rig.Refused {
				s.Errorf("%s asks while no process runs and is %s, want refused", from.Name, got)
			}
		}
		if got := s.tell(datagrams); !errors.Is(got.Err, syscall.ECONNREFUSED) {
			s.Errorf("datagrams while no process runs: the client is %s, want refused", got)
		}

		s.sync(s.snapshot(dataplane.Empty(),
			s.service("tcp", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0])), s.service("udp", dataplane.UDP, s.vip(2), s.at(s.Endpoints[0]))), false)
		for _, from := range []*rig.Host{s.Client, s.Up, s.Node} {
			s.answers(from, s.vip(1), "e1")
		}
		if got := s.tell(datagrams); got.Server != "e1" {
			s.Errorf("datagrams from the same socket after a restart: the client is %s, want an answer of e1", got)
		}
	})
}

// greeted opens a connection and reads what the server says first.
func (s *site) greeted(to netip.AddrPort) (net.Conn, *bufio.Reader) {
	s.Helper()
	conn, err := s.Client.Dial(s.Context(), rig.TCP, netip.AddrPort{}, to)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	reader := bufio.NewReader(conn)
	if _, err := reader.ReadString('\n'); err != nil {
		s.Fatal(err)
	}
	return conn, reader
}

// tell sends a datagram and waits for what comes of it.
func (s *site) tell(conn *net.UDPConn) rig.Result {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	return rig.Ask(ctx, conn)
}

// Affinity binds a client for all frontends of a pool, as long as its timeout;
// another timeout counts for bindings that come after it, and none ends them.
// Proves S6.1, S6.2.
func TestAffinity(t *testing.T) {
	onSites(t, func(s *site) {
		sticky := func(timeout time.Duration) *dataplane.ServicePort {
			sp := s.service("web", dataplane.TCP, s.vip(1), s.at(s.Endpoints[0]), s.at(s.Endpoints[1]), s.at(s.Remote))
			lb := *sp.Frontends[0]
			lb.Kind, lb.Addr = dataplane.LoadBalancerIP, s.vip(3)
			sp.Frontends = append(sp.Frontends, &lb)
			sp.Affinity = timeout
			return sp
		}
		want := s.snapshot(dataplane.Empty(), sticky(time.Hour))
		s.sync(want, false)
		bound := make(map[*rig.Host]string)
		clients := []*rig.Host{s.Client, s.Up, s.Node, s.Endpoints[1]}
		for _, from := range clients {
			bound[from] = s.ask(from, netip.AddrPortFrom(s.vip(1), 80)).Server
			for i := range 4 {
				vip := []netip.Addr{s.vip(1), s.vip(3)}[i%2]
				if got := s.ask(from, netip.AddrPortFrom(vip, 80)); got.Server != bound[from] || got.Server == "" {
					s.Errorf("%s is bound to %q and at %s is %s", from.Name, bound[from], vip, got)
				}
			}
		}
		want = s.snapshot(want, sticky(2*time.Hour))
		s.sync(want, false)
		for _, from := range clients {
			s.answers(from, s.vip(1), bound[from])
		}
		s.sync(s.snapshot(want, sticky(0)), false)
		seen := make(map[string]bool)
		for range 3 {
			seen[s.ask(s.Client, netip.AddrPortFrom(s.vip(1), 80)).Server] = true
		}
		if len(seen) != 3 {
			s.Errorf("without affinity three flows reach only %v", seen)
		}
	})
}
