package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestTCPGoesToEachInTurn(t *testing.T) {
	s := newSite(t, Config{})
	count := make(map[string]int)
	for _, h := range s.Endpoints {
		h.Serve(t, rig.TCP, 8080)
	}
	l := s.listen(dataplane.TCP, s.to(s.Endpoints...))
	for range 9 {
		got := s.ask(l, rig.TCP)
		count[got.Server]++
		if got.Source.Addr() != s.Node.Addr(got.Source.Addr()) && !s.onNode(got.Source.Addr()) {
			t.Errorf("the endpoint sees %s", got.Source)
		}
	}
	for _, h := range s.Endpoints {
		if count[h.Name] != 3 {
			t.Errorf("of 9 connections: %v, want 3 each", count)
		}
	}
}

// onNode tells whether the node has the address.
func (s *site) onNode(a netip.Addr) bool {
	out, err := s.Node.Run(s.Context(), "ip", "-o", "addr")
	if err != nil {
		s.Fatal(err)
	}
	return strings.Contains(out, " "+a.String()+"/")
}

// The one virtue of the old userspace mode: a client does not notice that an
// endpoint is gone, and the log tells.
func TestRefusalIsNotNoticed(t *testing.T) {
	s := newSite(t, Config{})
	s.Endpoints[2].Serve(t, rig.TCP, 8080)
	l := s.listen(dataplane.TCP, s.to(s.Endpoints...))
	for range 6 {
		if got := s.ask(l, rig.TCP); got.Server != "e3" {
			t.Fatalf("the client gets %s, want e3", got)
		}
	}
	said := s.log.String()
	for _, h := range s.Endpoints[:2] {
		if n := strings.Count(said, "endpoint="+at(h).String()); n != 1 {
			t.Errorf("the log tells %d times that %s refuses, want once:\n%s", n, h.Name, said)
		}
	}
}

func TestSilenceIsBounded(t *testing.T) {
	silent := func(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	}
	s := newSite(t, Config{Dial: silent})
	l := s.listen(dataplane.TCP, s.to(s.Endpoints...))
	began := time.Now()
	if got := s.ask(l, rig.TCP); !errors.Is(got.Err, syscall.ECONNRESET) {
		t.Errorf("the client is %s, want a reset", got)
	}
	if took := time.Since(began); took < 3*time.Second || took > 10*time.Second {
		t.Errorf("the client waited %s, want 3.75 s", took)
	}
}

func TestSilentEndpointIsPassedBy(t *testing.T) {
	s := newSite(t, Config{})
	s.Endpoints[0].Serve(t, rig.TCP, 8080)
	r := s.to(s.Endpoints[0])
	nobody := netip.MustParseAddrPort("192.168.77.99:8080")
	r.Endpoints = append(r.Endpoints, dataplane.Endpoint{Addr: nobody, Weight: 100})
	l := s.listen(dataplane.TCP, r)
	for range 3 {
		if got := s.ask(l, rig.TCP); got.Server != "e1" {
			t.Fatalf("the client gets %s, want e1", got)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	s := newSite(t, Config{})
	l := s.listen(dataplane.TCP, s.to(s.Endpoints...))
	if got := s.ask(l, rig.TCP); !errors.Is(got.Err, syscall.ECONNRESET) {
		t.Errorf("the client is %s, want a reset", got)
	}
}

// kubernetes#24648: a client must not be sent to a dead endpoint again.
func TestDeadEndpointLosesItsClients(t *testing.T) {
	s := newSite(t, Config{})
	live, err := s.Endpoints[0].Listen(t.Context(), ":8080")
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoints[0].ServeConns(t, live, func(c *net.TCPConn) { fmt.Fprintf(c, "e1 %s %s\n", c.RemoteAddr(), c.LocalAddr()) })
	r := s.to(s.Endpoints[0])
	r.Affinity = time.Hour
	l := s.listen(dataplane.TCP, r)
	if got := s.ask(l, rig.TCP); got.Server != "e1" {
		t.Fatalf("the client gets %s, want e1", got)
	}
	s.Endpoints[1].Serve(t, rig.TCP, 8080)
	both := s.to(s.Endpoints[:2]...)
	both.Affinity = time.Hour
	l.Set(both)
	for range 4 {
		if got := s.ask(l, rig.TCP); got.Server != "e1" {
			t.Fatalf("affinity binds the client to e1, and it gets %s", got)
		}
	}
	live.Close()
	s.Endpoints[2].Serve(t, rig.TCP, 8080)
	for range 4 {
		if got := s.ask(l, rig.TCP); got.Server != "e2" {
			t.Errorf("e1 is dead, and the client gets %s, want e2", got)
		}
	}
}

func TestHalfCloseOfTheClient(t *testing.T) {
	s := newSite(t, Config{})
	s.Endpoints[0].ServeHalfClosed(t, 8080)
	conn := s.connect(s.listen(dataplane.TCP, s.to(s.Endpoints[0])))
	const size = 3 << 20
	if _, err := conn.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(answer), fmt.Sprintf(" %d\n", size)) {
		t.Errorf("the answer is %q, %v; want one that counts %d bytes", answer, err, size)
	}
}

func TestHalfCloseOfTheEndpoint(t *testing.T) {
	s := newSite(t, Config{})
	ln, err := s.Endpoints[0].Listen(t.Context(), ":8080")
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 1)
	s.Endpoints[0].ServeConns(t, ln, func(c *net.TCPConn) {
		_ = c.CloseWrite()
		all, err := io.ReadAll(c)
		heard <- fmt.Sprint(string(all), err)
	})
	conn := s.connect(s.listen(dataplane.TCP, s.to(s.Endpoints[0])))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
	if _, err := conn.Write([]byte("still talking")); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if got := <-heard; got != "still talking<nil>" {
		t.Errorf("the endpoint heard %q", got)
	}
}

// A side that has gone away for good must not hold the other one for ever.
// Proves kubernetes#5461.
func TestHalfClosedConnectionsEnd(t *testing.T) {
	s := newSite(t, Config{HalfClosed: 50 * time.Millisecond})
	ln, err := s.Endpoints[0].Listen(t.Context(), ":8080")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	s.Endpoints[0].ServeConns(t, ln, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c) // the client's half
		_ = c.SetReadDeadline(time.Now().Add(patience))
		for { // silent, until the relay gives up
			if _, err := c.Write(nil); err != nil {
				ended <- err
				return
			}
			if err := readable(c); err != nil {
				ended <- err
				return
			}
			var b [1]byte
			if _, err := c.Read(b[:]); err != nil && !errors.Is(err, io.EOF) {
				ended <- err
				return
			}
		}
	})
	conn := s.connect(s.listen(dataplane.TCP, s.to(s.Endpoints[0])))
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client's connection ends with %v, want a reset", err)
	}
	if err := <-ended; errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the endpoint's connection ends with %v, want a reset", err)
	}
}

func TestResetIsPassedOn(t *testing.T) {
	s := newSite(t, Config{})
	ln, err := s.Endpoints[0].Listen(t.Context(), ":8080")
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoints[0].ServeConns(t, ln, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		abort(c)
	})
	conn := s.connect(s.listen(dataplane.TCP, s.to(s.Endpoints[0])))
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client reads %v, want a reset", err)
	}
}

// kubernetes#15527: the port is free at once; connections go on to their end.
func TestCloseFreesThePort(t *testing.T) {
	s := newSite(t, Config{})
	s.Endpoints[0].Serve(t, rig.TCP, 8080)
	l := s.listen(dataplane.TCP, s.to(s.Endpoints[0]))
	conn := s.connect(l)
	reader := bufio.NewReader(conn)
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if !s.relay.Listens(dataplane.TCP, l.Addr()) || s.relay.Listens(dataplane.UDP, l.Addr()) {
		t.Errorf("the relay does not know where it listens")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if s.relay.Listens(dataplane.TCP, l.Addr()) {
		t.Errorf("the relay says that it listens where it has closed")
	}
	other, err := s.Node.Listen(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatalf("the port is not free: %v", err)
	}
	other.Close()
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := reader.ReadString('\n'); err != nil || got != "hello\n" {
		t.Errorf("the connection has broken: %q, %v", got, err)
	}
}

// Proves S7.1.
func TestEndpointThatLeavesKeepsItsConnections(t *testing.T) {
	s := newSite(t, Config{})
	for _, h := range s.Endpoints[:2] {
		h.Serve(t, rig.TCP, 8080)
	}
	l := s.listen(dataplane.TCP, s.to(s.Endpoints[0]))
	conn := s.connect(l)
	reader := bufio.NewReader(conn)
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	l.Set(s.to(s.Endpoints[1]))
	if got := s.ask(l, rig.TCP); got.Server != "e2" {
		t.Errorf("a new connection gets %s, want e2", got)
	}
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := reader.ReadString('\n'); err != nil || got != "hello\n" {
		t.Errorf("the old connection has broken: %q, %v", got, err)
	}
}

// When no more files can be opened, clients wait in the queue of the socket.
// Proves kubernetes#5461.
func TestSurvivesWithoutFiles(t *testing.T) {
	s := newSite(t, Config{})
	s.Endpoints[0].Serve(t, rig.TCP, 8080)
	l := s.listen(dataplane.TCP, s.to(s.Endpoints[0]))
	if got := s.ask(l, rig.TCP); got.Server != "e1" {
		t.Fatal(got)
	}
	conn := s.connect(l) // opened before, to be relayed after
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	late, err := s.socket()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(late)
	restore := exhaustFiles(t)
	to := l.Addr().Addr().As4()
	if err := syscall.Connect(late, &syscall.SockaddrInet4{Port: int(l.Addr().Port()), Addr: to}); err != nil {
		restore()
		t.Fatal(err)
	}
	s.until("the relay says that files ran out", func() bool { return strings.Contains(s.log.String(), "too many open files") })
	restore()
	if err := syscall.SetsockoptTimeval(late, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 20}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := syscall.Read(late, buf); err != nil || !strings.HasPrefix(string(buf[:max(n, 0)]), "e1 ") {
		t.Errorf("the client that waited reads %q, %v; want what e1 says", buf[:max(n, 0)], err)
	}
}

// socket opens a socket of the client pod by hand, as nothing can be opened
// later.
func (s *site) socket() (fd int, err error) {
	err = s.Client.Do(func() error {
		fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		return err
	})
	return fd, err
}

// exhaustFiles takes away every file that the process could still open.
func exhaustFiles(t *testing.T) (restore func()) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	low := was
	low.Cur = 1
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}
}
