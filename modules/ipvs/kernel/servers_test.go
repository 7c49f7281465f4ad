package kernel_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// sample has addresses of one family.
type sample struct {
	family      dataplane.Family
	vip, other  netip.Addr
	real, real2 netip.AddrPort
	notHosts    []string
}

var samples = []sample{
	{
		family: dataplane.IPv4, vip: netip.MustParseAddr("10.96.0.1"), other: netip.MustParseAddr("10.96.0.2"),
		real: netip.MustParseAddrPort("10.1.0.7:8080"), real2: netip.MustParseAddrPort("10.1.0.8:8080"),
		notHosts: []string{"0.0.0.0", "224.0.0.9", "255.255.255.255"},
	},
	{
		family: dataplane.IPv6, vip: netip.MustParseAddr("fd00:96::1"), other: netip.MustParseAddr("fd00:96::2"),
		real: netip.MustParseAddrPort("[fd00:1::7]:8080"), real2: netip.MustParseAddrPort("[fd00:1::8]:8080"),
		notHosts: []string{"::", "ff02::1", "fe80::1"},
	},
}

var protocols = []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP}

// bench is what a behaviour is tried on.
type bench struct {
	kernel.Servers
	sample
}

func (b bench) key(p dataplane.Protocol) kernel.Key {
	return kernel.Key{Protocol: p, Addr: b.vip, Port: 80}
}

// apply makes changes and wants the refusals, in order.
func (b bench) apply(t *testing.T, want []error, ops ...kernel.Op) {
	t.Helper()
	refused, err := b.Apply(t.Context(), ops)
	if err != nil {
		t.Fatal(err)
	}
	for i := range max(len(refused), len(want)) {
		switch {
		case i >= len(want):
			t.Errorf("refused: %v", &refused[i])
		case i >= len(refused):
			t.Errorf("not refused: want %v", want[i])
		case !errors.Is(refused[i].Err, want[i]):
			t.Errorf("%v: want %v", &refused[i], want[i])
		}
	}
}

// list returns what there is, a line for each object.
func (b bench) list(t *testing.T) []string {
	t.Helper()
	list, err := b.List(t.Context(), b.family)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, v := range list {
		lines = append(lines, v.String())
		for _, r := range v.Reals {
			lines = append(lines, "  "+r.String())
		}
	}
	return lines
}

func (b bench) want(t *testing.T, lines ...string) {
	t.Helper()
	if got := b.list(t); !slices.Equal(got, lines) {
		t.Errorf("virtual servers:\n got %q\nwant %q", got, lines)
	}
}

func rr() kernel.Server { return kernel.Server{Scheduler: "rr"} }

// behaviours are what every kernel.Servers does, of the kernel and in memory.
var behaviours = []struct {
	name string
	test func(t *testing.T, b bench)
}{
	{"nothing", func(t *testing.T, b bench) {
		b.want(t)
		b.apply(t, nil)
	}},
	{"add and read", func(t *testing.T, b bench) {
		for _, p := range protocols {
			b.apply(t, nil,
				kernel.Op{Verb: kernel.AddServer, Key: b.key(p), Server: rr()},
				kernel.Op{Verb: kernel.AddReal, Key: b.key(p), Real: b.real2, Weight: 0},
				kernel.Op{Verb: kernel.AddReal, Key: b.key(p), Real: b.real, Weight: 65535},
			)
		}
		vip := netip.AddrPortFrom(b.vip, 80).String()
		reals := []string{fmt.Sprintf("  %s -m -w 65535", b.real), fmt.Sprintf("  %s -m -w 0", b.real2)}
		var want []string
		for _, p := range protocols {
			want = append(want, p.String()+" "+vip+" -s rr")
			want = append(want, reals...)
		}
		b.want(t, want...)
	}},
	{"get one", func(t *testing.T, b bench) {
		k := b.key(dataplane.TCP)
		if v, ok, err := b.Get(t.Context(), k); ok || err != nil {
			t.Errorf("absent: got %v, %v, %v", v, ok, err)
		}
		b.apply(t, nil, kernel.Op{Verb: kernel.AddServer, Key: k, Server: rr()},
			kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real, Weight: 3})
		v, ok, err := b.Get(t.Context(), k)
		if err != nil || !ok || v.Key != k || v.Server != rr() {
			t.Fatalf("got %v, %v, %v", v, ok, err)
		}
		if r, ok := v.Find(b.real); !ok || r.Weight != 3 || !r.AsAdded() || r.Active != 0 || r.Inactive != 0 {
			t.Errorf("real server: got %v, %v", r, ok)
		}
		if r, ok := v.Find(b.real2); ok {
			t.Errorf("found %v", r)
		}
	}},
	{"options of a virtual server", func(t *testing.T, b bench) {
		want := []kernel.Server{
			rr(),
			{Scheduler: "wrr", Persist: 3 * time.Hour},
			{Scheduler: "sh", Persist: time.Second, PersistBits: 24},
			{Scheduler: "mh", Flags: kernel.HashPort | kernel.HashFallback},
			{Scheduler: "rr", Flags: kernel.OnePacket},
			{Scheduler: "rr", Persist: 86400 * time.Second},
		}
		for i, s := range want {
			k := kernel.Key{Protocol: dataplane.UDP, Addr: b.vip, Port: uint16(1000 + i)}
			b.apply(t, nil, kernel.Op{Verb: kernel.AddServer, Key: k, Server: s})
		}
		b.readBack(t, want)
		// Each becomes the next: what was set before goes.
		want = append(want[1:], want[0])
		for i, s := range want {
			k := kernel.Key{Protocol: dataplane.UDP, Addr: b.vip, Port: uint16(1000 + i)}
			b.apply(t, nil, kernel.Op{Verb: kernel.SetServer, Key: k, Server: s})
		}
		b.readBack(t, want)
	}},
	{"fractions of a second round up", func(t *testing.T, b bench) {
		b.apply(t, nil, kernel.Op{
			Verb: kernel.AddServer, Key: b.key(dataplane.TCP),
			Server: kernel.Server{Scheduler: "rr", Persist: 1500 * time.Millisecond},
		})
		b.readBack(t, []kernel.Server{{Scheduler: "rr", Persist: 2 * time.Second}})
	}},
	{"twice", func(t *testing.T, b bench) {
		k := b.key(dataplane.TCP)
		add := kernel.Op{Verb: kernel.AddServer, Key: k, Server: rr()}
		real := kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real, Weight: 1}
		again := kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real, Weight: 2}
		b.apply(t, []error{kernel.ErrExists, kernel.ErrExists}, add, real, add, again)
		b.want(t, k.String()+" -s rr", fmt.Sprintf("  %s -m -w 1", b.real))
	}},
	{"absent virtual server", func(t *testing.T, b bench) {
		k := b.key(dataplane.TCP)
		b.apply(t, slices.Repeat([]error{kernel.ErrNoServer}, 5),
			kernel.Op{Verb: kernel.SetServer, Key: k, Server: rr()},
			kernel.Op{Verb: kernel.DeleteServer, Key: k},
			kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real},
			kernel.Op{Verb: kernel.SetReal, Key: k, Real: b.real},
			kernel.Op{Verb: kernel.DeleteReal, Key: k, Real: b.real})
		b.want(t)
	}},
	{"absent real server", func(t *testing.T, b bench) {
		k := b.key(dataplane.TCP)
		b.apply(t, []error{kernel.ErrNoReal, kernel.ErrNoReal},
			kernel.Op{Verb: kernel.AddServer, Key: k, Server: rr()},
			kernel.Op{Verb: kernel.SetReal, Key: k, Real: b.real},
			kernel.Op{Verb: kernel.DeleteReal, Key: k, Real: b.real})
	}},
	{"delete", func(t *testing.T, b bench) {
		k, other := b.key(dataplane.TCP), kernel.Key{Protocol: dataplane.TCP, Addr: b.other, Port: 80}
		for _, key := range []kernel.Key{k, other} {
			b.apply(t, nil, kernel.Op{Verb: kernel.AddServer, Key: key, Server: rr()},
				kernel.Op{Verb: kernel.AddReal, Key: key, Real: b.real, Weight: 1},
				kernel.Op{Verb: kernel.AddReal, Key: key, Real: b.real2, Weight: 1})
		}
		b.apply(t, nil, kernel.Op{Verb: kernel.DeleteServer, Key: k}, kernel.Op{Verb: kernel.DeleteReal, Key: other, Real: b.real})
		b.want(t, other.String()+" -s rr", fmt.Sprintf("  %s -m -w 1", b.real2))
	}},
	{"change a weight", func(t *testing.T, b bench) {
		k := b.key(dataplane.TCP)
		b.apply(t, nil, kernel.Op{Verb: kernel.AddServer, Key: k, Server: rr()},
			kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real, Weight: 1},
			kernel.Op{Verb: kernel.SetReal, Key: k, Real: b.real, Weight: 0})
		b.want(t, k.String()+" -s rr", fmt.Sprintf("  %s -m -w 0", b.real))
	}},
	{"unknown scheduler", func(t *testing.T, b bench) {
		k, other := b.key(dataplane.TCP), kernel.Key{Protocol: dataplane.TCP, Addr: b.other, Port: 80}
		fancy := kernel.Server{Scheduler: "fancy"}
		b.apply(t, []error{kernel.ErrScheduler, kernel.ErrScheduler},
			kernel.Op{Verb: kernel.AddServer, Key: k, Server: fancy},
			kernel.Op{Verb: kernel.AddServer, Key: other, Server: rr()},
			kernel.Op{Verb: kernel.SetServer, Key: other, Server: fancy})
		b.want(t, other.String()+" -s rr")
	}},
	{"what cannot be a scheduler", func(t *testing.T, b bench) {
		for _, name := range []string{"", "none", "a-name-that-is-too-long-for-the-kernel", "rr\x00", "../rr", "RR", "%s"} {
			b.apply(t, []error{kernel.ErrScheduler}, kernel.Op{
				Verb: kernel.AddServer, Key: b.key(dataplane.TCP), Server: kernel.Server{Scheduler: name},
			})
		}
		b.want(t)
	}},
	{"addresses that are no hosts", func(t *testing.T, b bench) {
		k := b.key(dataplane.TCP)
		b.apply(t, nil, kernel.Op{Verb: kernel.AddServer, Key: k, Server: rr()})
		for _, a := range b.notHosts {
			addr := netip.AddrPortFrom(netip.MustParseAddr(a), 80)
			b.apply(t, []error{kernel.ErrAddress}, kernel.Op{Verb: kernel.AddReal, Key: k, Real: addr, Weight: 1})
		}
		b.want(t, k.String()+" -s rr")
	}},
	{"negative weight", func(t *testing.T, b bench) {
		k := b.key(dataplane.TCP)
		b.apply(t, []error{kernel.ErrWeight, kernel.ErrWeight}, kernel.Op{Verb: kernel.AddServer, Key: k, Server: rr()},
			kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real, Weight: -1},
			kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real, Weight: 1},
			kernel.Op{Verb: kernel.SetReal, Key: k, Real: b.real, Weight: -1})
	}},
	{"timeouts", func(t *testing.T, b bench) {
		b.timeouts(t, kernel.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute})
		b.setTimeouts(t, kernel.Timeouts{TCP: time.Hour, UDP: time.Second})
		b.timeouts(t, kernel.Timeouts{TCP: time.Hour, TCPFin: 2 * time.Minute, UDP: time.Second})
		b.setTimeouts(t, kernel.Timeouts{TCPFin: 1500 * time.Millisecond})
		b.timeouts(t, kernel.Timeouts{TCP: time.Hour, TCPFin: 2 * time.Second, UDP: time.Second})
	}},
}

// readBack wants the virtual servers with these options.
func (b bench) readBack(t *testing.T, want []kernel.Server) {
	t.Helper()
	list, err := b.List(t.Context(), b.family)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != len(want) {
		t.Fatalf("got %d virtual servers, want %d", len(list), len(want))
	}
	for i, v := range list {
		if v.Server != want[i] {
			t.Errorf("%s: got %v, want %v", v.Key, v.Server, want[i])
		}
	}
}

func (b bench) timeouts(t *testing.T, want kernel.Timeouts) {
	t.Helper()
	if got, err := b.Timeouts(t.Context()); err != nil || got != want {
		t.Errorf("timeouts: got %+v, %v, want %+v", got, err, want)
	}
}

func (b bench) setTimeouts(t *testing.T, to kernel.Timeouts) {
	t.Helper()
	if err := b.SetTimeouts(t.Context(), to); err != nil {
		t.Error(err)
	}
}

// tryBehaviours runs the table on what open returns, new for each.
func tryBehaviours(t *testing.T, open func(t *testing.T) kernel.Servers) {
	for _, s := range samples {
		for _, c := range behaviours {
			t.Run(s.family.String()+"/"+c.name, func(t *testing.T) {
				c.test(t, bench{open(t), s})
			})
		}
	}
}
