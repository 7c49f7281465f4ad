package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// childTarget holds an endpoint; it makes the test's program a relay to it, so
// that the relay's memory and system calls can be told from those of the test.
const childTarget = "PORTWAY_RELAY_CHILD"

// child relays until its input ends.
func child(target string) int {
	endpoint := netip.MustParseAddrPort(target)
	name := dataplane.ServicePortName{Namespace: "default", Name: "web", Protocol: dataplane.TCP}
	l, err := New(Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}).Listen(context.Background(), dataplane.TCP, netip.MustParseAddrPort(os.Getenv("PORTWAY_RELAY_AT")),
		Route{Name: name, Endpoints: []dataplane.Endpoint{{Addr: endpoint, Weight: 1}}})
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// process is a relay of its own.
type process struct {
	at  netip.AddrPort
	pid int
}

// startChild starts a relay on a host.
func startChild(t *testing.T, on *rig.Host, target netip.AddrPort) process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program) //nolint:noctx // lives until its input ends
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), childTarget+"="+target.String(), "PORTWAY_RELAY_AT="+netip.AddrPortFrom(on.Addr4, 0).String())
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := on.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the relay ended with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netip.ParseAddrPort(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the relay says %q", line)
	}
	return process{addr, cmd.Process.Pid}
}

// number reads a line "NAME: 123 …" of a file in /proc.
func (p process) number(t *testing.T, file, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid, file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", name, text)
	return 0
}

// stream sends bytes from the client pod through an address until the endpoint
// has them all, and returns the time.
func (s *site) stream(to netip.AddrPort, bytes int64, received <-chan int64) time.Duration {
	s.Helper()
	conn, err := s.Client.Dial(s.T.Context(), rig.TCP, netip.AddrPort{}, to)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	buf := make([]byte, 256<<10)
	began := time.Now()
	for left := bytes; left > 0; {
		n, err := conn.Write(buf[:min(left, int64(len(buf)))])
		if err != nil {
			s.Fatal(err)
		}
		left -= int64(n)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		s.Fatal(err)
	}
	if n := <-received; n != bytes {
		s.Fatalf("%d bytes arrive of %d", n, bytes)
	}
	return time.Since(began)
}

// sink is a server on the first endpoint that counts what it gets.
func (s *site) sink() <-chan int64 {
	s.Helper()
	ln, err := s.Endpoints[0].Listen(s.T.Context(), ":8080")
	if err != nil {
		s.Fatal(err)
	}
	received := make(chan int64)
	s.Endpoints[0].ServeConns(s.T, ln, func(c *net.TCPConn) {
		buf := make([]byte, 256<<10)
		var sum int64
		for {
			n, err := c.Read(buf)
			sum += int64(n)
			if err != nil {
				received <- sum
				return
			}
		}
	})
	return received
}

// The bytes of a stream go from socket to socket in the kernel: what the relay's process itself
// reads and writes (which /proc counts for read and write, and not for splice)
// is next to nothing. And a stream through it is not much slower than one past
// it, measured in turns in one run, with a loose floor: this is no benchmark.
func TestStreamsAreSpliced(t *testing.T) {
	s := newSite(t, Config{})
	received := s.sink()
	relay := startChild(t, s.Node, at(s.Endpoints[0]))
	const size = 256 << 20
	s.stream(relay.at, 1<<20, received) // warm
	before := relay.number(t, "io", "rchar") + relay.number(t, "io", "wchar")
	best := func(to netip.AddrPort) time.Duration {
		return min(s.stream(to, size, received), s.stream(to, size, received), s.stream(to, size, received))
	}
	through, direct := best(relay.at), best(at(s.Endpoints[0]))
	if n := relay.number(t, "io", "rchar") + relay.number(t, "io", "wchar") - before; n > size/100 {
		t.Errorf("the relay read and wrote %d bytes by itself of %d that it carried", n, 3*size)
	}
	ratio := direct.Seconds() / through.Seconds()
	t.Logf("%.0f MiB/s through the relay, %.0f past it: %.0f %%",
		size/through.Seconds()/(1<<20), size/direct.Seconds()/(1<<20), 100*ratio)
	if ratio < 0.35 {
		t.Errorf("the relay reaches %.0f %% of the direct rate", 100*ratio)
	}
}

// fileLimit is how many files this process may open.
func fileLimit(t *testing.T) int {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return int(min(limit.Cur, 1<<20))
}

// Ten thousand idle connections cost less than 300 MiB. Each needs two files of
// the relay, so as many are opened as this process may have files for.
func TestIdleConnectionsAreCheap(t *testing.T) {
	s := newSite(t, Config{})
	n := min(10_000, (fileLimit(t)-400)/2)
	ln, err := s.Endpoints[0].Listen(t.Context(), ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := ln.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	relay := startChild(t, s.Node, at(s.Endpoints[0]))
	empty := relay.number(t, "status", "VmRSS")
	greeting := make([]byte, 5)
	for i := range n {
		client, err := s.Client.Dial(t.Context(), rig.TCP, netip.AddrPort{}, relay.at)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer client.Close()
		server, err := ln.Accept()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer server.Close()
		if _, err := server.Write([]byte("hello")); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if _, err := io.ReadFull(client, greeting); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	kib := relay.number(t, "status", "VmRSS")
	t.Logf("%d idle connections: %d MiB, %d MiB without", n, kib/1024, empty/1024)
	if limit := memoryFactor * 300 * 1024 * n / 10_000; kib-empty > limit {
		t.Errorf("%d idle connections take %d KiB, want at most %d", n, kib-empty, limit)
	}
}
