package netfilter

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// features has rules with everything that a plane can write, by table.
func features(f dataplane.Family) map[Table][]Rule {
	addr, other := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("192.0.2.1")
	prefix := netip.MustParsePrefix("10.96.0.0/12")
	low, lowMask := netip.MustParseAddr("0.0.0.5"), netip.MustParseAddr("0.0.0.15")
	hostUnreachable := "icmp-host-unreachable"
	if f == dataplane.IPv6 {
		addr, other = netip.MustParseAddr("fd00::7"), netip.MustParseAddr("2001:db8::1")
		prefix = netip.MustParsePrefix("fd00:96::/108")
		low, lowMask = netip.MustParseAddr("::5"), netip.MustParseAddr("::f")
		hostUnreachable = "icmp6-addr-unreachable"
	}
	icmp := dataplane.ICMP
	if f == dataplane.IPv6 {
		icmp = dataplane.ICMPv6
	}
	to := netip.AddrPortFrom(addr, 8080)
	sub := Jump("SUB")
	tcp, udp := Is(dataplane.TCP), Is(dataplane.UDP)
	return map[Table][]Rule{
		NAT: {
			{},
			{Target: sub},
			{Target: Goto("SUB")},
			{Target: Accept()},
			{Target: Return()},
			{Source: MatchAddr(addr), Destination: MatchPrefix(prefix), Target: sub},
			{Source: MatchAddr(addr).Negated(), Destination: MatchPrefix(prefix).Negated(), Target: sub},
			{Destination: MatchMask(low, lowMask), Target: sub},
			{Destination: MatchMask(low, lowMask).Negated(), Target: sub},
			{In: IfaceMatch{Name: "lo"}, Target: sub},
			{In: IfaceMatch{Name: "veth+", Not: true}, Target: sub},
			{Protocol: tcp, Target: sub},
			{Protocol: ProtocolMatch{Number: dataplane.UDP, Not: true}, Target: sub},
			{Protocol: Is(icmp), Target: sub},
			{Protocol: tcp, DestPort: Port(80), Target: sub},
			{Protocol: udp, DestPort: PortMatch{First: 53, Last: 54}, Target: sub},
			{Protocol: udp, SourcePort: PortMatch{First: 1024, Last: 65535, Not: true}, DestPort: Port(53), Target: sub},
			{Protocol: tcp, DestPort: PortMatch{First: 80, Last: 80, Not: true}, Target: sub},
			{Protocol: tcp, DestPort: PortMatch{First: 0, Last: 1023}, Target: sub},
			{Protocol: Is(dataplane.SCTP), DestPort: Port(132), SourcePort: Port(1), Target: sub},
			{Comment: "plain_Comment-1", Target: sub},
			{Comment: `default/web:http "quoted" it's a \ b`, Target: sub},
			{Comment: "größe ☃", Target: sub},
			{Comment: Comment(string(make([]byte, 300))), Target: sub},
			{SourceType: Local, Target: sub},
			{DestType: Local, Target: sub},
			{SourceType: NotLocal, DestType: Local, LimitIfaceIn: true, Target: sub},
			{DestType: NotLocal, Comment: "c", Target: sub},
			{Conntrack: ConntrackMatch{States: StateNew | StateEstablished | StateRelated}, Target: sub},
			{Conntrack: ConntrackMatch{States: StateInvalid, NotStates: true}, Target: sub},
			{Conntrack: ConntrackMatch{States: StateDNAT | StateSNAT | StateUntracked}, Target: sub},
			{Protocol: tcp, Conntrack: ConntrackMatch{
				States: StateNew, OrigDst: netip.PrefixFrom(addr, addr.BitLen()), OrigDstPort: Port(443),
			}, Target: sub},
			{Conntrack: ConntrackMatch{OrigDst: prefix}, Target: sub},
			{Mark: MatchMark(0x4000, 0x4000), Target: sub},
			{Mark: MarkMatch{Value: 0, Mask: 0x4000, Not: true}, Target: sub},
			{Mark: MatchMark(7, 0xffffffff), Target: sub},
			{Sets: [2]SetMatch{{Name: "CLIENTS", Parts: "src"}}, Target: sub},
			{Sets: [2]SetMatch{{Name: "VIPS", Parts: "dst,dst", Not: true}}, Target: sub},
			{Sets: [2]SetMatch{
				{Name: "VIPS", Parts: "dst,dst"}, {Name: "RANGES", Parts: "dst,dst,src", Not: true},
			}, Target: sub},
			{Probability: OneIn(2), Target: sub},
			{Probability: OneIn(3), Target: sub},
			{Probability: OneIn(7919), Target: sub},
			{Probability: 1, Target: sub},
			{Probability: certain - 1, Target: sub},
			{Protocol: tcp, Target: DNAT(to)},
			{Protocol: tcp, Probability: OneIn(5), Target: DNAT(to)},
			{Target: DNAT(netip.AddrPortFrom(addr, 0))},
			{Target: Netmap(prefix)},
			{Destination: MatchAddr(addr), Target: Netmap(netip.PrefixFrom(other, 8))},
			{Protocol: tcp, Target: Redirect(10256)},
			{Target: Redirect(0)},
			{Target: SetXMark(0x4000, 0x4000)},
			{Target: SetXMark(1, 0xffffffff)},
			{Target: OrMark(0x8000)},
			{Target: XorMark(0x8000)},
			{Target: ClearMark(0x8000)},
			{Target: AddSet("CLIENTS", "src", 10800)},
			{Target: AddSet("VIPS", "src,src", 0)},
			{Target: DelSet("CLIENTS", "src")},
			{
				Source: MatchAddr(addr), Destination: MatchAddr(other), In: IfaceMatch{Name: "eth0"},
				Protocol: tcp, SourcePort: Port(9), DestPort: Port(80), Comment: "all at once",
				SourceType: Local, DestType: NotLocal, Conntrack: ConntrackMatch{States: StateNew},
				Mark: MatchMark(1, 1), Sets: [2]SetMatch{{Name: "CLIENTS", Parts: "src"}},
				Probability: OneIn(4), Target: DNAT(to),
			},
		},
		Filter: {
			{Target: Drop()},
			{Out: IfaceMatch{Name: "eth0", Not: true}, Target: Drop()},
			{Target: Reject(PortUnreachable(f))},
			{Target: Reject(hostUnreachable)},
			{Protocol: tcp, Target: Reject(TCPReset)},
			{Conntrack: ConntrackMatch{States: StateInvalid}, Target: Drop()},
		},
		Mangle: {
			{Target: MapMark("VIPS", "dst,dst")},
			{Out: IfaceMatch{Name: "kube-ipvs0"}, Target: OrMark(2)},
		},
		Raw: {
			{Source: MatchAddr(addr), Target: Drop()},
		},
	}
}

// postrouting has the rules that only nat POSTROUTING takes.
func postrouting(f dataplane.Family) []Rule {
	from := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 0)
	if f == dataplane.IPv6 {
		from = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), 0)
	}
	return []Rule{
		{Target: Masquerade(false)},
		{Target: Masquerade(true)},
		{Out: IfaceMatch{Name: "eth+"}, Target: SNAT(from)},
	}
}

func TestParseIsTheInverseOfString(t *testing.T) {
	for _, f := range dataplane.Families() {
		for table, rules := range features(f) {
			for _, r := range rules {
				if got := ParseRule(r.String()); got != r {
					t.Errorf("%s %s:\n got %+v\nwant %+v", table, r, got, r)
				}
			}
		}
		for _, r := range postrouting(f) {
			if got := ParseRule(r.String()); got != r {
				t.Errorf("%s:\n got %+v\nwant %+v", r, got, r)
			}
		}
	}
}

// What the kernel prints after a restore is what was written, for every
// feature, back end and family.
func TestKernelGivesRulesBack(t *testing.T) {
	for _, f := range dataplane.Families() {
		onBackends(t, f, func(t *testing.T, h *Host) {
			makeSets(t, f)
			for table, rules := range features(f) {
				tx := Transaction{Table: table, Chains: []Chain{chain("TEST", rules...), chain("SUB")}}
				if err := h.Restore(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
				sameRules(t, save(t, h, table)["TEST"].Rules, rules)
			}
			tx := Transaction{Table: NAT}
			for _, r := range postrouting(f) {
				tx.Insert = append(tx.Insert, PlacedRule{Chain: "POSTROUTING", Rule: r})
			}
			if err := h.Restore(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			sameRules(t, save(t, h, NAT)["POSTROUTING"].Rules, postrouting(f))
		})
	}
}

func TestMarksAreCanonical(t *testing.T) {
	rows := []struct {
		option string
		want   Target
	}{
		{"--set-mark 0x4000", SetXMark(0x4000, 0xffffffff)},
		{"--set-mark 0x1/0x4", SetXMark(1, 5)},
		{"--set-xmark 0x1/0x4", SetXMark(1, 4)},
		{"--or-mark 0x4000", OrMark(0x4000)},
		{"--xor-mark 0x4000", XorMark(0x4000)},
		{"--and-mark 0xffffbfff", ClearMark(0x4000)},
	}
	enterNamespace(t)
	h := NewHost(testBackend("nft", dataplane.IPv4), 0)
	for i, row := range rows {
		command(t, "sh", "-c", "iptables-nft -t mangle -A PREROUTING -j MARK "+row.option)
		if got := save(t, h, Mangle)["PREROUTING"].Rules[i].Target; got != row.want {
			t.Errorf("%s is %+v, want %+v", row.option, got, row.want)
		}
	}
}

func TestOneIn(t *testing.T) {
	for n := 2; n < 70000; n++ {
		r := Rule{Probability: OneIn(n), Target: Accept()}
		if got := ParseRule(r.String()); got != r {
			t.Fatalf("1/%d: %d came back as %d from %s", n, r.Probability, got.Probability, r)
		}
	}
	if OneIn(1) != 0 || OneIn(2) != certain/2 {
		t.Errorf("OneIn(1) = %d, OneIn(2) = %d", OneIn(1), OneIn(2))
	}
}

func TestComment(t *testing.T) {
	rows := []struct{ in, want string }{
		{"", ""},
		{"a\nb\x00c\x7f", "a b c "},
		{"bad \xff byte", "bad   byte"},
	}
	for _, row := range rows {
		if got := Comment(row.in); got != row.want {
			t.Errorf("Comment(%q) = %q, want %q", row.in, got, row.want)
		}
	}
	snow := ""
	for range 100 {
		snow += "☃"
	}
	if got := Comment(snow); len(got) != 255 {
		t.Errorf("a long comment has %d bytes, want 255", len(got))
	}
}

func TestSetNames(t *testing.T) {
	r := ParseRule("-m set --match-set A src -m set ! --match-set B dst -j SET --add-set C src --exist")
	if got := r.SetNames(); !slices.Equal(got, []string{"A", "B", "C"}) {
		t.Errorf("sets %v", got)
	}
}
