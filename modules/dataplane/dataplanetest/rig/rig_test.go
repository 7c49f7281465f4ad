package rig

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

const port = 8080

// inTime is for probes that are answered at once, however busy the machine is.
const inTime = 10 * time.Second

// start builds a rig in which every host serves on port.
func start(t *testing.T, opts Options) *Rig {
	t.Helper()
	t.Parallel()
	r := New(t, opts)
	for _, h := range r.Hosts() {
		h.ServeAll(t, port)
	}
	return r
}

// matrix calls f for each protocol and family.
func matrix(t *testing.T, f func(t *testing.T, proto Protocol, like netip.Addr)) {
	t.Helper()
	for _, proto := range []Protocol{TCP, UDP} {
		for family, like := range map[string]netip.Addr{"IPv4": netip.IPv4Unspecified(), "IPv6": netip.IPv6Unspecified()} {
			t.Run(fmt.Sprintf("%s %s", proto, family), func(t *testing.T) { f(t, proto, like) })
		}
	}
}

func TestEveryHostReachesEveryOther(t *testing.T) {
	for name, opts := range map[string]Options{
		"routed":  {},
		"bridged": {Bridge: "cni0", Endpoints: 3, PodIface: "cali"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, opts)
			matrix(t, func(t *testing.T, proto Protocol, like netip.Addr) {
				var probes []Probe
				var to []*Host
				for _, a := range r.Hosts() {
					for _, b := range r.Hosts() {
						probes = append(probes, Probe{From: a, Proto: proto, To: netip.AddrPortFrom(b.Addr(like), port), Timeout: inTime})
						to = append(to, b)
					}
				}
				for i, got := range SendAll(t.Context(), probes) {
					if got.Server != to[i].Name || got.Source.Addr() != probes[i].From.Addr(like) || got.Local != probes[i].To {
						t.Errorf("%s: %s", probes[i], got)
					}
				}
			})
		})
	}
}

func TestClosedPortRefuses(t *testing.T) {
	r := start(t, Options{})
	matrix(t, func(t *testing.T, proto Protocol, like netip.Addr) {
		// More than the kernel would refuse in a row with its usual rate limit.
		probes := slices.Repeat([]Probe{
			{From: r.Client, Proto: proto, To: netip.AddrPortFrom(r.Endpoints[0].Addr(like), port+1), Timeout: inTime},
			{From: r.Client, Proto: proto, To: netip.AddrPortFrom(r.Node.Addr(like), port+1), Timeout: inTime},
		}, 100)
		for i, got := range SendAll(t.Context(), probes) {
			if got.Outcome != Refused {
				t.Errorf("%s: %s", probes[i], got)
			}
		}
	})
}

func TestUnknownAddressIsSilent(t *testing.T) {
	r := start(t, Options{})
	service := map[bool]netip.Addr{true: ServiceRange4.Addr().Next(), false: ServiceRange6.Addr().Next()}
	matrix(t, func(t *testing.T, proto Protocol, like netip.Addr) {
		var probes []Probe
		for _, h := range r.Hosts() {
			probes = append(probes, Probe{From: h, Proto: proto, To: netip.AddrPortFrom(service[like.Is4()], port)})
		}
		for i, got := range SendAll(t.Context(), probes) {
			if got.Outcome != Silent {
				t.Errorf("%s: %s", probes[i], got)
			}
		}
	})
}

func TestPing(t *testing.T) {
	r := start(t, Options{})
	for _, like := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if got := r.Client.Ping(t.Context(), r.Remote.Addr(like), inTime); got.Outcome != Answered {
			t.Errorf("ping from %s to %s: %s", r.Client.Name, r.Remote.Addr(like), got)
		}
	}
	if got := r.Client.Ping(t.Context(), ServiceRange4.Addr(), 50*time.Millisecond); got.Outcome != Silent {
		t.Errorf("ping to an unknown address: %s", got)
	}
	if _, err := r.Node.Run(t.Context(), "iptables", "-A", "FORWARD", "-d", ServiceRange4.String(), "-j", "REJECT"); err != nil {
		t.Fatal(err)
	}
	if got := r.Client.Ping(t.Context(), ServiceRange4.Addr(), inTime); got.Outcome != Refused {
		t.Errorf("ping to an address that is rejected: %s", got)
	}
}

// TestOwnRulesRefuseOrSilence: a packet that its sender's rules take is an error
// of the call that sends it, whatever becomes of it.
func TestOwnRulesRefuseOrSilence(t *testing.T) {
	r := start(t, Options{})
	e1 := r.Endpoints[0].Addr4
	timeout := map[Outcome]time.Duration{Refused: inTime, Silent: DefaultTimeout}
	for target, want := range map[string]Outcome{"REJECT": Refused, "DROP": Silent} {
		if _, err := r.Node.Run(t.Context(), "iptables", "-I", "OUTPUT", "-d", e1.String(), "-j", target); err != nil {
			t.Fatal(err)
		}
		for _, proto := range []Protocol{TCP, UDP} {
			probe := Probe{From: r.Node, Proto: proto, To: netip.AddrPortFrom(e1, port), Timeout: timeout[want]}
			if got := probe.Send(t.Context()); got.Outcome != want {
				t.Errorf("%s, %s: %s", target, probe, got)
			}
		}
		if got := r.Node.Ping(t.Context(), e1, timeout[want]); got.Outcome != want {
			t.Errorf("%s, ping: %s", target, got)
		}
	}
}

// rulesFor writes a Service by hand: one address that leads to e1, masqueraded
// for clients from outside.
func rulesFor(service netip.Addr, to *Host) string {
	return fmt.Sprintf(`*nat
-A PREROUTING -d %[1]s -j DNAT --to-destination %[2]s
-A OUTPUT -d %[1]s -j DNAT --to-destination %[2]s
-A POSTROUTING -d %[2]s -o eth+ -j RETURN
-A POSTROUTING -m conntrack --ctstate DNAT ! -s %[3]s -j MASQUERADE
COMMIT
`, service, to.Addr(service), clusterRange(service))
}

func clusterRange(like netip.Addr) netip.Prefix {
	if like.Is4() {
		return ClusterRange4
	}
	return ClusterRange6
}

func TestNodeTranslatesAddresses(t *testing.T) {
	r := start(t, Options{})
	e1 := r.Endpoints[0]
	matrix(t, func(t *testing.T, proto Protocol, like netip.Addr) {
		service, restore := ServiceRange4.Addr().Next(), "iptables-restore"
		if like.Is6() {
			service, restore = ServiceRange6.Addr().Next(), "ip6tables-restore"
		}
		if _, err := r.Node.RunInput(t.Context(), rulesFor(service, e1), restore); err != nil {
			t.Fatal(err)
		}
		for from, source := range map[*Host]*Host{r.Client: r.Client, r.Node: r.Node, r.Up: r.Node, r.Remote: r.Remote, r.Node2: r.Node} {
			probe := Probe{From: from, Proto: proto, To: netip.AddrPortFrom(service, port), Timeout: inTime}
			if got := probe.Send(t.Context()); got.Server != "e1" || got.Source.Addr() != source.Addr(like) {
				t.Errorf("%s: %s, want e1 to see %s", probe, got, source.Name)
			}
		}
	})
}

// TestFlowOutlivesItsRule also shows that conntrack stays on without NAT rules.
func TestFlowOutlivesItsRule(t *testing.T) {
	r := start(t, Options{})
	service := ServiceRange4.Addr().Next()
	if _, err := r.Node.RunInput(t.Context(), rulesFor(service, r.Endpoints[0]), "iptables-restore"); err != nil {
		t.Fatal(err)
	}
	conn, err := r.Client.DialUDP(t.Context(), 5000, netip.AddrPortFrom(service, port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(want Outcome) {
		t.Helper()
		timeout := inTime
		if want == Silent {
			timeout = DefaultTimeout
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		if got := Ask(ctx, conn); got.Outcome != want || want == Answered && got.Source.Port() != 5000 {
			t.Errorf("got %s, want %s from port 5000", got, want)
		}
	}
	ask(Answered)
	if _, err := r.Node.Run(t.Context(), "iptables", "-t", "nat", "-F"); err != nil {
		t.Fatal(err)
	}
	ask(Answered)
	if !tracks(t, r.Node, service) {
		t.Errorf("conntrack of %s has no flow to %s", r.Node.Name, service)
	}
	for _, source := range []uint16{5001, 5000} {
		err := r.Node.ForgetFlows(func(s, to netip.AddrPort) bool {
			return s == netip.AddrPortFrom(r.Client.Addr4, source) && to.Addr() == service
		})
		if err != nil {
			t.Fatal(err)
		}
		if source == 5001 {
			ask(Answered) // the flow of another one was to be forgotten
		}
	}
	ask(Silent)
}

func tracks(t *testing.T, h *Host, to netip.Addr) bool {
	t.Helper()
	flows, err := h.Conntrack()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(flows, func(f *netlink.ConntrackFlow) bool {
		return f.Forward.DstIP.Equal(to.AsSlice())
	})
}

func TestEchoAndHalfClose(t *testing.T) {
	r := start(t, Options{})
	e1 := r.Endpoints[0]
	e1.ServeHalfClosed(t, port+1)
	for p, want := range map[uint16]string{port: "hello", port + 1: " 5\n"} {
		conn, err := r.Client.Dial(t.Context(), TCP, netip.AddrPort{}, netip.AddrPortFrom(e1.Addr6, p))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(got), "e1 ") || !strings.HasSuffix(string(got), want) {
			t.Errorf("port %d: %q, %v; want e1's answer that ends in %q", p, got, err, want)
		}
	}
}

// TestUDPAnswersFromTheAddressAsked: a wildcard socket of a host with several
// addresses must not choose another one for the answer.
func TestUDPAnswersFromTheAddressAsked(t *testing.T) {
	r := start(t, Options{})
	for _, to := range []netip.Addr{gatewayAddrs.v4, gatewayAddrs.v6, r.Up.Addr4, r.Up.Addr6} {
		probe := Probe{From: r.Client, Proto: UDP, To: netip.AddrPortFrom(to, port), Timeout: inTime}
		if got := probe.Send(t.Context()); got.Outcome != Answered || got.Local != probe.To {
			t.Errorf("%s: %s", probe, got)
		}
	}
}

func TestListening(t *testing.T) {
	r := start(t, Options{})
	ln, err := r.Node.Listen(t.Context(), netip.AddrPortFrom(r.Node.Addr4, 443).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	got, err := r.Node.Listening(TCP)
	want := []netip.AddrPort{netip.MustParseAddrPort("192.168.77.10:443"), netip.MustParseAddrPort("[::]:8080")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("TCP: %v, %v; want %v", got, err, want)
	}
	if got, err := r.Node.Listening(UDP); err != nil || !slices.Equal(got, want[1:]) {
		t.Errorf("UDP: %v, %v; want %v", got, err, want[1:])
	}
}

func TestSysctl(t *testing.T) {
	r := start(t, Options{})
	if err := r.Client.SetSysctl("net.ipv4.ip_default_ttl", "7"); err != nil {
		t.Fatal(err)
	}
	for h, want := range map[*Host]string{r.Client: "7", r.Node: "64"} {
		if got, err := h.Sysctl("net.ipv4.ip_default_ttl"); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %s", h.Name, got, err, want)
		}
	}
}

// TestDoKeepsTheWorkingDirectory: entering a mount namespace resets it.
func TestDoKeepsTheWorkingDirectory(t *testing.T) {
	r := start(t, Options{})
	out, err := r.Node.Run(t.Context(), "ls", "rig_test.go")
	if err != nil {
		t.Error(out, err)
	}
	if _, err := r.Node.Run(t.Context(), "sh", "-c", "echo no >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("error of a failed command: %v, want its complaint", err)
	}
}

func TestRunIsPrivateToTheRig(t *testing.T) {
	a, b := start(t, Options{}), New(t, Options{})
	if _, err := a.Node.Run(t.Context(), "touch", "/run/a.lock"); err != nil {
		t.Fatal(err)
	}
	if out, err := a.Node2.Run(t.Context(), "ls", "/run"); err != nil || !strings.Contains(out, "a.lock\n") {
		t.Errorf("another host of the rig: %q, %v", out, err)
	}
	if out, err := b.Node.Run(t.Context(), "ls", "/run"); err != nil || strings.Contains(out, "a.lock") {
		t.Errorf("another rig: %q, %v", out, err)
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		r, err := open(Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	r := New(b, Options{})
	r.Endpoints[0].ServeAll(b, port)
	probe := Probe{From: r.Client, Proto: TCP, To: netip.AddrPortFrom(r.Endpoints[0].Addr4, port), Timeout: inTime}
	for b.Loop() {
		for _, got := range SendAll(b.Context(), slices.Repeat([]Probe{probe}, 100)) {
			if got.Outcome != Answered {
				b.Fatal(got)
			}
		}
	}
}

// TestWatchSeesWhatItsSenderDoesNot: the answers of another node's pod bypass
// the node that has translated the request, so the client never hears of it.
func TestWatchSeesWhatItsSenderDoesNot(t *testing.T) {
	r := start(t, Options{})
	w := r.Node2.Watch(t)
	matrix(t, func(t *testing.T, proto Protocol, like netip.Addr) {
		service, restore := ServiceRange4.Addr().Next(), "iptables-restore"
		if like.Is6() {
			service, restore = ServiceRange6.Addr().Next(), "ip6tables-restore"
		}
		if _, err := r.Node.RunInput(t.Context(), rulesFor(service, r.Remote), restore); err != nil {
			t.Fatal(err)
		}
		source := netip.AddrPortFrom(r.Up.Addr(like), 10000)
		probe := Probe{From: r.Up, Proto: proto, To: netip.AddrPortFrom(service, port), Source: netip.AddrPortFrom(netip.Addr{}, source.Port())}
		if got := probe.Send(t.Context()); got.Outcome != Silent {
			t.Errorf("%s: %s", probe, got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), inTime)
		defer cancel()
		to := netip.AddrPortFrom(r.Remote.Addr(like), port)
		if got, err := w.Await(ctx, func(s Sighting) bool { return s.Source == source }); err != nil || got.Local != to {
			t.Errorf("%s: %s, %v; want %s", probe, got, err, to)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), DefaultTimeout)
	defer cancel()
	if got, err := w.Await(ctx, func(s Sighting) bool { return s.Source.Port() == 10001 }); err == nil {
		t.Errorf("what nobody has sent is seen: %s", got)
	}
}
