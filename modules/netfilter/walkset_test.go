package netfilter

import (
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// Every type of set, in every part of a packet that it looks at. The packet
// is TCP from 10.0.0.7:1000 to 192.0.2.1:80.
func TestWalkLooksIntoSets(t *testing.T) {
	src, dst := netip.MustParsePrefix("10.0.0.7/32"), netip.MustParsePrefix("192.0.2.1/32")
	tcp80 := SetEntry{Net: dst, Protocol: dataplane.TCP, Port: 80}
	triple := tcp80
	triple.Second = src.Addr()
	network := func(from string) SetEntry {
		e := tcp80
		e.SecondNet = netip.MustParsePrefix(from)
		return e
	}
	udp80, tcp81 := tcp80, tcp80
	udp80.Protocol, tcp81.Port = dataplane.UDP, 81
	rows := []struct {
		kind  SetType
		entry SetEntry
		parts string
		want  bool
	}{
		{HashIP, SetEntry{Net: src}, "src", true},
		{HashIP, SetEntry{Net: src}, "dst", false},
		{HashNet, SetEntry{Net: netip.MustParsePrefix("10.0.0.0/8")}, "src", true},
		{HashNet, SetEntry{Net: netip.MustParsePrefix("10.1.0.0/16")}, "src", false},
		{HashIPPort, tcp80, "dst,dst", true},
		{HashIPPort, tcp80, "dst,src", false},
		{HashIPPort, tcp80, "dst", false}, // too few parts: the kernel finds nothing
		{HashIPPort, udp80, "dst,dst", false},
		{HashIPPort, tcp81, "dst,dst", false},
		{HashIPPortIP, triple, "dst,dst,src", true},
		{HashIPPortIP, triple, "dst,dst,dst", false},
		{HashIPPortNet, network("10.0.0.0/8"), "dst,dst,src", true},
		{HashIPPortNet, network("10.1.0.0/16"), "dst,dst,src", false},
		{HashIPPortNet, network("10.0.0.0/8"), "dst,dst,dst", false},
		{BitmapPort, SetEntry{Port: 80}, "dst", true},
		{BitmapPort, SetEntry{Port: 80}, "src", false},
	}
	for _, row := range rows {
		match := Rule{Sets: [2]SetMatch{{Name: "S", Parts: row.parts}}, Target: Drop()}
		w := &Walker{
			Sets:  map[string]Set{"S": {Type: row.kind, Entries: []SetEntry{row.entry}}},
			Rules: Ruleset{Raw: {"PREROUTING": chain("PREROUTING", match)}},
		}
		p := packet(dataplane.TCP, "10.0.0.7:1000", "192.0.2.1:80", "eth0")
		got := through(t, w, p, Hook{Raw, "PREROUTING"})
		if dropped := got[0].Verdict == Dropped; dropped != row.want {
			t.Errorf("%s %s with %+v: matched %t", row.kind, row.parts, row.entry, dropped)
		}
	}
}

// Of several prefixes the longest gives its mark, in the bits of its mask.
func TestWalkMapsMarks(t *testing.T) {
	set := Set{Type: HashNet, Marks: true, Entries: []SetEntry{
		{Net: netip.MustParsePrefix("10.0.0.0/8"), Mark: 1, MarkMask: 0xff},
		{Net: netip.MustParsePrefix("10.0.0.0/24"), Mark: 2, MarkMask: 0x0f},
	}}
	w := &Walker{
		Sets:  map[string]Set{"S": set},
		Rules: Ruleset{Mangle: {"INPUT": chain("INPUT", Rule{Target: MapMark("S", "src")})}},
	}
	for from, want := range map[string]uint32{"10.0.0.7:1": 0x132, "10.9.0.7:1": 0x101, "172.16.0.1:1": 0x137} {
		p := packet(dataplane.UDP, from, "192.0.2.1:80", "eth0")
		p.Mark = 0x137
		if got := through(t, w, p, Hook{Mangle, "INPUT"}); got[0].Packet.Mark != want {
			t.Errorf("from %s: mark %#x, want %#x", from, got[0].Packet.Mark, want)
		}
	}
}

func TestWalkTranslatesSources(t *testing.T) {
	to := netip.MustParseAddrPort("198.51.100.1:0")
	w := &Walker{Rules: Ruleset{NAT: {"POSTROUTING": chain("POSTROUTING", Rule{Target: SNAT(to)})}}}
	p := PacketOf(dataplane.Flow{
		Src: netip.MustParseAddrPort("10.0.0.7:1000"), Dst: netip.MustParseAddrPort("192.0.2.1:80"),
		Protocol: dataplane.TCP, InInterface: "eth0",
	})
	got := follow(t, w, p)
	if len(got) != 1 || got[0].Packet.Source != netip.MustParseAddrPort("198.51.100.1:1000") || !got[0].Masqueraded() {
		t.Errorf("got %+v", got)
	}
}

// What one rule does to a set, the rules after it see, of the same packet too.
func TestWalkSeesWhatRulesWriteToSets(t *testing.T) {
	src := netip.MustParsePrefix("10.0.0.7/32")
	in := func(set, parts string) [2]SetMatch { return [2]SetMatch{{Name: set, Parts: parts}} }
	rows := []struct {
		name   string
		before []SetEntry
		write  Target
		forget string
		want   Verdict
	}{
		{"added", nil, AddSet("S", "src", 0), "", Dropped},
		{"something else added", nil, AddSet("S", "dst", 0), "", Accepted},
		{"added to another set", nil, AddSet("T", "src", 0), "", Accepted},
		{"removed", []SetEntry{{Net: src}}, DelSet("S", "src"), "", Accepted},
		{"something else removed", []SetEntry{{Net: src}}, DelSet("S", "dst"), "", Dropped},
		{"forgotten, and added", nil, AddSet("S", "src", 0), "S", Dropped},
		{"forgotten", []SetEntry{{Net: src}}, DelSet("S", "dst"), "S", Accepted},
	}
	for _, row := range rows {
		w := &Walker{
			Sets:   map[string]Set{"S": {Type: HashIP, Entries: row.before}, "T": {Type: HashIP}},
			Forget: row.forget,
			Rules: Ruleset{Filter: {"INPUT": {Name: "INPUT", Policy: "ACCEPT", Rules: []Rule{
				{Target: row.write},
				{Sets: in("S", "src"), Target: Drop()},
			}}}},
		}
		p := Packet{
			Source: netip.MustParseAddrPort("10.0.0.7:1000"), Destination: netip.MustParseAddrPort("192.0.2.1:80"),
			Protocol: dataplane.TCP, In: "eth0",
		}
		got, err := w.Through(p, Hook{Filter, "INPUT"})
		if err != nil || len(got) != 1 || got[0].Verdict != row.want {
			t.Errorf("%s: %v (%v), want %v", row.name, got, err, row.want)
		}
	}
}
