package kernel

import (
	"errors"
	"io/fs"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// asPrinted is what ipvsadm 1.31 printed on a kernel 6.1.
const asPrinted = `-A -t 10.96.0.1:443 -s rr
-a -t 10.96.0.1:443 -r 10.0.0.1:6443 -m -w 3
-a -t 10.96.0.1:443 -r 10.0.0.2:443 -g -w 1
-a -t 10.96.0.1:443 -r 10.0.0.3:443 -i -w 0 --tun-type ipip
-A -u 10.96.0.1:53 -s mh -p 300 -M 255.255.255.0 -b mh-fallback,mh-port
-A -u 10.96.0.2:53 -s sh -p 10800 -b sh-port
-A -u 10.96.0.3:53 -s wrr -o
-A -u 10.96.0.13:53 -s wrr -b flag-1,flag-3
-A -u 10.96.0.14:5060 -s wrr -p 60 --pe sip
-A --sctp-service 10.96.0.5:53 -s rr
-A -t [fd00::a]:53 -s rr -p 10 -M 64
-a -t [fd00::a]:53 -r [fd00::b]:53 -m -w 1
-A -f 7 -s wlc
-a -f 7 -r 10.0.0.9:0 -g -w 1
-A -f 8 -6 -s wlc
`

func TestReadServers(t *testing.T) {
	list, err := ReadServers(strings.NewReader(asPrinted))
	if err != nil {
		t.Fatal(err)
	}
	key := func(p dataplane.Protocol, at string) Key {
		a := netip.MustParseAddrPort(at)
		return Key{p, a.Addr(), a.Port()}
	}
	real := func(at string, how Forward, weight int) Real {
		return Real{Addr: netip.MustParseAddrPort(at), Forward: how, Weight: weight, Active: NotCounted, Inactive: NotCounted}
	}
	want := []VirtualServer{
		{Key: key(dataplane.UDP, "10.96.0.1:53"), Server: Server{"mh", 300 * time.Second, 24, HashFallback | HashPort}},
		{Key: key(dataplane.TCP, "10.96.0.1:443"), Server: Server{Scheduler: "rr"}, Reals: []Real{
			real("10.0.0.1:6443", Masquerade, 3), real("10.0.0.2:443", Route, 1), real("10.0.0.3:443", Tunnel, 0),
		}},
		{Key: key(dataplane.UDP, "10.96.0.2:53"), Server: Server{"sh", 10800 * time.Second, 0, HashPort}},
		{Key: key(dataplane.UDP, "10.96.0.3:53"), Server: Server{Scheduler: "wrr", Flags: OnePacket}},
		{Key: key(dataplane.SCTP, "10.96.0.5:53"), Server: Server{Scheduler: "rr"}},
		{Key: key(dataplane.UDP, "10.96.0.13:53"), Server: Server{Scheduler: "wrr", Flags: HashFallback | flagThird}},
		{Key: key(dataplane.UDP, "10.96.0.14:5060"), Server: Server{Scheduler: "wrr", Persist: time.Minute}},
		{Key: key(dataplane.TCP, "[fd00::a]:53"), Server: Server{"rr", 10 * time.Second, 64, 0}, Reals: []Real{real("[fd00::b]:53", Masquerade, 1)}},
	}
	if !reflect.DeepEqual(list, want) {
		t.Errorf("read\n%+v\nwant\n%+v", list, want)
	}
	var text strings.Builder
	if err := WriteServers(&text, list); err != nil {
		t.Fatal(err)
	}
	again, err := ReadServers(strings.NewReader(text.String()))
	if err != nil || !reflect.DeepEqual(again, list) {
		t.Errorf("%v: written as\n%s and read as\n%+v", err, &text, again)
	}
}

// The numbers of connections are those of /proc/net/ip_vs, where that was saved.
func TestCount(t *testing.T) {
	list, err := ReadServers(strings.NewReader(asPrinted))
	if err != nil {
		t.Fatal(err)
	}
	saved := SavedServers(list)
	err = saved.Count(strings.NewReader("IP Virtual Server version 1.2.1 (size=4096)\nTCP  0A600001:01BB rr\n" +
		"  -> 0A000002:01BB      Route   1      3          4\n"))
	v, ok, _ := saved.Get(t.Context(), Key{dataplane.TCP, netip.MustParseAddr("10.96.0.1"), 443})
	if err != nil || !ok || v.Reals[1].Active != 3 || v.Reals[1].Inactive != 4 || v.Reals[0].Active != NotCounted {
		t.Errorf("%v, %t: %+v", err, ok, v)
	}
	if _, ok, err := saved.Get(t.Context(), Key{dataplane.TCP, netip.MustParseAddr("10.96.0.1"), 444}); ok || err != nil {
		t.Errorf("a virtual server that is not there: %t, %v", ok, err)
	}
}

func TestReadServersRefuses(t *testing.T) {
	const server = "-A -t 10.96.0.1:443 -s rr\n"
	for _, row := range []struct{ text, want string }{
		{"-D -t 10.96.0.1:443\n", "line 1 of the saved virtual servers: \"-D\""},
		{"TCP  10.96.0.1:443 rr\n", "unknown option"},
		{"-A -s rr\n", "which virtual server"},
		{"-A -t 10.96.0.1:443\n", "wants a scheduler"},
		{"-A -t 10.96.0.1:https -s rr\n", "in numbers"},
		{server + "\n" + server, "line 3 of the saved virtual servers: the virtual server TCP 10.96.0.1:443 is there already"},
		{"-a -t 10.96.0.1:443 -r 10.0.0.1:443 -m -w 1\n", "is not there"},
		{server + "-a -t 10.96.0.1:443 -m -w 1\n", "cannot be another real server"},
		{server + "-a -t 10.96.0.1:443 -r [fd00::1]:443 -m -w 1\n", "cannot be another real server"},
		{server + strings.Repeat("-a -t 10.96.0.1:443 -r 10.0.0.1:443 -m -w 1\n", 2), "line 3"},
		{server + "-a -t 10.96.0.1:443 -r 10.0.0.1:443 -m -w -1\n", "want 0 to 65535"},
		{server + "-a -t 10.96.0.1:443 -r 10.0.0.1:443 -m -w\n", "the option -w has no value"},
		{"-A -t 10.96.0.1:443 -s rr -p x\n", "-p x"},
		{"-A -t 10.96.0.1:443 -s rr -b fast\n", "unknown flag"},
		{"-A -t 10.96.0.1:443 -s rr -p 1 -M 255.0.255.0\n", "not the mask"},
		{"-A -t 10.96.0.1:443 -s rr -M 255.255.0.0\n", "-M needs -p"},
		{"-A -t [fd00::1]:443 -s rr -p 1 -M 129\n", "not the mask"},
	} {
		if list, err := ReadServers(strings.NewReader(row.text)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q is read as %+v, %v, want %q", row.text, list, err, row.want)
		}
	}
}

// What iproute2 printed on a kernel 6.1, of the device and of all devices.
func TestReadLocals(t *testing.T) {
	prefix := netip.MustParsePrefix
	want := []Local{
		{Prefix: prefix("10.96.0.1/32")},
		{Prefix: prefix("10.96.0.7/32"), Source: netip.MustParseAddr("192.0.2.1")},
		{Prefix: prefix("10.96.9.9/32"), Bound: true},
		{Prefix: prefix("240.0.0.0/5")},
		{Prefix: prefix("fd00::1/128")},
		{Prefix: prefix("fd00::99/128"), Bound: true},
	}
	for _, text := range []string{`local 10.96.0.1 proto 86 scope host
local 10.96.0.7 proto 86 scope host src 192.0.2.1
local 10.96.9.9 proto kernel scope host src 10.96.9.9
local 127.96.0.1 proto kernel scope host src 127.96.0.1
local 240.0.0.0/5 proto 86 scope host
local fd00::1 proto 86 metric 1024 pref medium
local fd00::99 proto kernel metric 0 pref medium
local fe80::fc50:d5ff:feeb:3a46 proto kernel metric 0 pref medium
multicast ff00::/8 proto kernel metric 256 pref medium
`, `local 10.96.0.1 dev kube-ipvs0 proto 86 scope host
local 10.96.0.7 dev kube-ipvs0 proto 86 scope host src 192.0.2.1
local 10.96.9.9 dev kube-ipvs0 proto kernel scope host src 10.96.9.9
local 127.0.0.0/8 dev lo proto kernel scope host src 127.0.0.1
local 192.0.2.1 dev eth0 proto kernel scope host src 192.0.2.1
broadcast 192.0.2.255 dev eth0 proto kernel scope link src 192.0.2.1
local 240.0.0.0/5 dev kube-ipvs0 proto 86 scope host
local ::1 dev lo proto kernel metric 0 pref medium
local fd00::1 dev kube-ipvs0 proto 86 metric 1024 pref medium
local fd00::99 dev kube-ipvs0 proto kernel metric 0 pref medium
`} {
		d, err := ReadLocals(strings.NewReader(text))
		if err != nil || !d.Exists || !reflect.DeepEqual(d.Locals, want) {
			t.Errorf("%v: read\n%+v\nwant\n%+v", err, d, want)
		}
		var written strings.Builder
		if err := WriteLocals(t.Context(), &written, d); err != nil {
			t.Fatal(err)
		}
		again, err := ReadLocals(strings.NewReader(written.String()))
		if err != nil || !reflect.DeepEqual(again, d) {
			t.Errorf("%v: written as\n%s and read as\n%+v", err, &written, again)
		}
	}
	d, err := ReadLocals(strings.NewReader("local 127.0.0.0/8 dev lo proto kernel scope host src 127.0.0.1\n"))
	if _, list := d.List(t.Context(), dataplane.IPv4); err != nil || !errors.Is(list, ErrNoDevice) {
		t.Errorf("%v, %v: another device than ours", err, list)
	}
	for _, text := range []string{"10.0.0.0/8 dev eth0\n", "local\n", "local x\n", "local 10.0.0.1/99\n", "local 10.0.0.1 src y\n"} {
		if d, err := ReadLocals(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%q is read as %+v, %v", text, d, err)
		}
	}
}

func TestReadSysctls(t *testing.T) {
	s, err := ReadSysctls(strings.NewReader("kernel.osrelease = 6.1.176\nnet.ipv4.vs.conntrack = 1\n# a comment\nnet.ipv4.conf.all.arp_ignore=0\n"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := s.Settings(true)
	if err != nil || len(want) != 6 {
		t.Fatalf("%v: %+v", err, want)
	}
	differ, _ := Unset(s, want)
	if len(differ) != 1 || differ[0].Name != "net/ipv4/conf/all/arp_ignore" {
		t.Errorf("differ: %+v", differ)
	}
	var text strings.Builder
	if err := WriteSysctls(&text, s); err != nil || text.String() != "kernel.osrelease = 6.1.176\nnet.ipv4.vs.conntrack = 1\nnet.ipv4.conf.all.arp_ignore = 0\n" {
		t.Errorf("%v: written as\n%s", err, &text)
	}
	if _, err := ReadSysctls(strings.NewReader("a = 1\nb\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("nonsense: %v", err)
	}
	if _, err := (SavedSysctls{"kernel/osrelease": "new"}).Settings(false); err == nil {
		t.Error("a release without a number is read")
	}
	if want, err := (SavedSysctls{}).Settings(false); err != nil || want != nil {
		t.Errorf("without a release: %v, %v", want, err)
	}
}

// What was saved cannot be written.
func TestSavedIsNotWritten(t *testing.T) {
	s := Saved{Device: SavedDevice{Exists: true}}
	_, servers := s.Servers.Apply(t.Context(), nil)
	_, timeouts := s.Servers.Timeouts(t.Context())
	_, device := s.Device.Ensure(t.Context())
	_, locals := s.Device.Apply(t.Context(), nil)
	for _, err := range []error{
		servers, timeouts, s.Servers.SetTimeouts(t.Context(), Timeouts{}), device, locals,
		s.Device.Remove(t.Context()), s.Sysctls.Write("a", "1"),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v", err)
		}
	}
	if _, err := s.Sysctls.Read("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a sysctl that was not saved: %v", err)
	}
}

// What is read of virtual servers is the same when it is written and read again.
func FuzzReadServers(f *testing.F) {
	f.Add(asPrinted)
	f.Add("-A -t 10.96.0.1:443 -s rr\n# a comment\n-a -t 10.96.0.1:443 -r 10.0.0.1:443 -l -w 0 -x 5 -y 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ReadServers(strings.NewReader(text))
		if err != nil {
			return
		}
		for i := range list {
			for j := range list[i].Reals {
				list[i].Reals[j].Upper, list[i].Reals[j].Lower = 0, 0 // ipvsadm does not print them
			}
		}
		var written strings.Builder
		if err := WriteServers(&written, list); err != nil {
			t.Fatal(err)
		}
		again, err := ReadServers(strings.NewReader(written.String()))
		if err != nil || !reflect.DeepEqual(again, list) {
			t.Errorf("%q is read as\n%+v, written as %q and read again, %v, as\n%+v", text, list, written.String(), err, again)
		}
	})
}

func FuzzReadLocals(f *testing.F) {
	f.Add("local 10.96.0.1 proto 86 scope host\nlocal 10.96.0.7 dev kube-ipvs0 proto 86 src 192.0.2.1\n")
	f.Add("local fd00::99 proto kernel metric 0 pref medium\nmulticast ff00::/8 dev kube-ipvs0 proto kernel\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ReadLocals(strings.NewReader(text))
		if err != nil || !d.Exists {
			return
		}
		var written strings.Builder
		if err := WriteLocals(t.Context(), &written, d); err != nil {
			t.Fatal(err)
		}
		again, err := ReadLocals(strings.NewReader(written.String()))
		if err != nil || !reflect.DeepEqual(again, d) {
			t.Errorf("%q is read as\n%+v, written as %q and read again, %v, as\n%+v", text, d, written.String(), err, again)
		}
	})
}

// FuzzParseTable reads what may be in /proc/net/ip_vs: no text hurts.
func FuzzParseTable(f *testing.F) {
	f.Add("TCP  0A600001:01BB rr  \n  -> 0A000003:01BB      Tunnel  0      0          0\nUDP  [fd00::1]:0035 rr\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, family := range dataplane.Families() {
			for k, reals := range parseTable(strings.NewReader(text), family) {
				if k.Family() != family || len(reals) > strings.Count(text, "->") {
					t.Errorf("%q: %s has %d real servers", text, k, len(reals))
				}
			}
		}
	})
}
