package kernel

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

var (
	sampleKey  = Key{Protocol: dataplane.TCP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	sampleReal = netip.MustParseAddrPort("10.1.1.21:8080")
)

// TestWireBack: what an op writes reads back as the same.
func TestWireBack(t *testing.T) {
	for _, o := range []Op{
		{Verb: AddServer, Key: sampleKey, Server: Server{Scheduler: "rr"}},
		{Verb: AddReal, Key: sampleKey, Real: sampleReal, Weight: 70000},
		{
			Verb: SetServer, Key: Key{Protocol: dataplane.SCTP, Addr: netip.MustParseAddr("fd00::1"), Port: 65535},
			Server: Server{Scheduler: "mh", Persist: 10800 * time.Second, PersistBits: 64, Flags: HashPort},
		},
		{Verb: SetReal, Key: sampleKey, Real: netip.MustParseAddrPort("[fd00::2]:1")},
	} {
		var m message
		m.op(&o)
		v, ok := serverOf(m.buf)
		if !ok || v.Key != o.Key || v.Server != o.Server && !o.Verb.OfReal() {
			t.Errorf("%s: got %v, %v", o, v, ok)
		}
		r, ok := realOf(m.buf, o.Key.Family())
		if ok != o.Verb.OfReal() || ok && (r.Addr != o.Real || r.Weight != o.Weight || !r.AsAdded()) {
			t.Errorf("%s: got %v, %v", o, r, ok)
		}
	}
}

// TestFamilyOfRealServer is moby/ipvs#19 and kubernetes#89520: without a family
// of its own a real server has that of its virtual server, whatever its 16
// bytes look like.
func TestFamilyOfRealServer(t *testing.T) {
	answerWith := func(af uint16, addr ...byte) []byte {
		var m message
		m.generic(cmdGetDest)
		nest := m.open(attrDest)
		if af != 0 {
			m.uint16(destFamily, af)
		}
		m.bytes(destAddr, slices.Concat(addr, make([]byte, 16-len(addr))))
		m.port(destPort, 80)
		m.close(nest)
		return m.buf
	}
	for _, c := range []struct {
		body   []byte
		family dataplane.Family
		want   string
	}{
		{answerWith(0, 10, 1, 1, 21), dataplane.IPv4, "10.1.1.21:80"},
		{answerWith(unix.AF_INET, 10, 1, 1, 21), dataplane.IPv4, "10.1.1.21:80"},
		{answerWith(0, 0xfd), dataplane.IPv6, "[fd00::]:80"},
		{answerWith(0, 0x20, 1, 0xd, 0xb8), dataplane.IPv6, "[2001:db8::]:80"},
		{answerWith(unix.AF_INET6, 0x20, 1, 0xd, 0xb8), dataplane.IPv4, "[2001:db8::]:80"},
	} {
		if r, ok := realOf(c.body, c.family); !ok || r.Addr.String() != c.want {
			t.Errorf("got %v, %v, want %s", r.Addr, ok, c.want)
		}
	}
}

func TestNetmask(t *testing.T) {
	for _, f := range dataplane.Families() {
		for length := range uint8(f.Bits()) {
			if got := maskLength(f, netmask(f, length)); got != length {
				t.Errorf("%s /%d: got %d", f, length, got)
			}
		}
	}
}

// TestTable reads what Linux 6.1 printed, with records of others and bad ones.
func TestTable(t *testing.T) {
	const text = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:0050 rr  
  -> 0A010015:1F90      Masq    1      0          2         
  -> 0A010016:1F90      Route   70000  1          0         
UDP  0A600001:0035 wlc ops persistent 300 FFFFFFFF
TCP  0A600002:0050 rr  
  -> 0A010015:1F90      Sidewards 1    0          0         
TCP  0A600003:zz rr  
  -> 0A010015:1F90      Masq    1      0          0         
TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0050 rr 
  -> [fd00:0001:0000:0000:0000:0000:0000:0007]:1F90      Masq    1      0          0         
FWM  00000007 rr 
  -> 0A010017:1F90      Masq    1      0          0         
`
	tcp, udp := sampleKey, Key{Protocol: dataplane.UDP, Addr: sampleKey.Addr, Port: 53}
	first := Real{Addr: netip.MustParseAddrPort("10.1.0.21:8080"), Weight: 1, Inactive: 2}
	second := Real{Addr: netip.MustParseAddrPort("10.1.0.22:8080"), Weight: 70000, Forward: Route, Active: 1}
	want := map[Key][]Real{tcp: {first, second}, udp: nil}
	if got := parseTable(strings.NewReader(text), dataplane.IPv4); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	six := Key{Protocol: dataplane.TCP, Addr: netip.MustParseAddr("fd00::1"), Port: 80}
	want = map[Key][]Real{six: {{Addr: netip.MustParseAddrPort("[fd00:1::7]:8080"), Weight: 1}}}
	if got := parseTable(strings.NewReader(text), dataplane.IPv6); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}
