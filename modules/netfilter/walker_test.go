package netfilter

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane"
)

// A Service in the shape of the iptables plane: buckets, one chain per pool,
// masquerade after DNAT, rejects at the end, affinity by a set.
const serviceRules = `*mangle
:PREROUTING ACCEPT [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:BUCKET-5 - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SVC-B - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "not ours" -m limit --limit 1/sec -j LOG
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 0.0.0.5/0.0.0.15 -g BUCKET-5
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A BUCKET-5 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A
-A BUCKET-5 -d 10.96.0.21/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-B
-A KUBE-SVC-A -p tcp -m statistic --mode random --probability 0.33333333349 -j DNAT --to-destination 10.1.0.1:8080
-A KUBE-SVC-A -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.1.0.2:8080
-A KUBE-SVC-A -p tcp -j DNAT --to-destination 10.1.0.3:8080
-A KUBE-SVC-B -p tcp -m set --match-set AFF-1 src -j DNAT --to-destination 10.1.0.1:8080
-A KUBE-SVC-B -p tcp -j SET --add-set AFF-2 src --exist --timeout 60
-A KUBE-SVC-B -p tcp -j DNAT --to-destination 10.1.0.2:8080
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-A
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30081 -j REDIRECT --to-ports 4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -m set ! --match-set LOOP dst,dst,src -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -p tcp -m conntrack --ctstate NEW -m tcp --dport 22 -j ACCEPT
-A INPUT -p tcp -m tcp --dport 4000 -j ACCEPT
-A FORWARD -d 10.96.0.0/12 -m conntrack --ctstate NEW -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -p tcp -m conntrack --ctorigdst 10.96.0.21 --ctorigdstport 80 -m mark --mark 0x1 -j DROP
-A OUTPUT -d 10.96.0.0/12 -m conntrack --ctstate NEW -j REJECT --reject-with icmp-port-unreachable
COMMIT
`

func serviceWalker(t *testing.T) *Walker {
	t.Helper()
	rules, err := ReadRuleset(strings.NewReader(serviceRules))
	if err != nil {
		t.Fatal(err)
	}
	ip := func(s string) netip.Prefix { return netip.MustParsePrefix(s + "/32") }
	return &Walker{
		Rules: rules,
		Sets: map[string]Set{
			"AFF-1": {Type: HashIP, Entries: []SetEntry{{Net: ip("10.1.0.9")}}},
			"AFF-2": {Type: HashIP},
			"LOOP": {Type: HashIPPortIP, Entries: []SetEntry{
				{Net: ip("10.1.0.1"), Protocol: dataplane.TCP, Port: 8080, Second: netip.MustParseAddr("10.1.0.1")},
			}},
		},
		IsLocal: func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.1") },
	}
}

func packet(proto dataplane.Protocol, from, to, in string) Packet {
	return Packet{
		Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to),
		Protocol: proto, In: in, States: StateNew,
	}
}

// ends tells the outcomes in a line each, without the way.
func ends(outcomes []Outcome) string {
	var b strings.Builder
	for _, o := range outcomes {
		e := o.Explain()
		fmt.Fprintf(&b, "%s %s", e.Action, o.Packet.Destination)
		if o.Masqueraded() {
			b.WriteString(" masqueraded")
		}
		if o.Local {
			b.WriteString(" local")
		}
		fmt.Fprintf(&b, " %.2f\n", o.Probability)
	}
	return b.String()
}

func TestFollow(t *testing.T) {
	const pod, node, far = "10.1.0.9:5000", "192.0.2.1:5000", "198.51.100.1:5000"
	rows := []struct {
		name string
		p    Packet
		want []string
	}{
		{"ClusterIP from a pod", packet(dataplane.TCP, pod, "10.96.0.5:80", "veth1"), []string{
			"forward 10.1.0.1:8080 0.33", "forward 10.1.0.2:8080 0.33", "forward 10.1.0.3:8080 0.33",
		}},
		{"hairpin", packet(dataplane.TCP, "10.1.0.1:5000", "10.96.0.5:80", "veth1"), []string{
			"forward 10.1.0.1:8080 masqueraded 0.33", "forward 10.1.0.2:8080 0.33", "forward 10.1.0.3:8080 0.33",
		}},
		{"from the node", packet(dataplane.TCP, node, "10.96.0.5:80", ""), []string{
			"forward 10.1.0.1:8080 0.33", "forward 10.1.0.2:8080 0.33", "forward 10.1.0.3:8080 0.33",
		}},
		{"other port", packet(dataplane.TCP, pod, "10.96.0.5:81", "veth1"), []string{"reject 10.96.0.5:81 1.00"}},
		{"other protocol, from the node", packet(dataplane.UDP, node, "10.96.0.5:80", ""), []string{"reject 10.96.0.5:80 1.00"}},
		{"affinity binds", packet(dataplane.TCP, pod, "10.96.0.21:80", "veth1"), []string{"forward 10.1.0.1:8080 1.00"}},
		{"affinity knows nobody", packet(dataplane.TCP, far, "10.96.0.21:80", "eth0"), []string{"forward 10.1.0.2:8080 1.00"}},
		{"NodePort", packet(dataplane.TCP, far, "192.0.2.1:30080", "eth0"), []string{
			"forward 10.1.0.1:8080 masqueraded 0.33", "forward 10.1.0.2:8080 masqueraded 0.33", "forward 10.1.0.3:8080 masqueraded 0.33",
		}},
		{"redirect", packet(dataplane.TCP, far, "192.0.2.1:30081", "eth0"), []string{"forward 0.0.0.0:4000 local 1.00"}},
		{"redirect of the node's own is dropped by nobody", packet(dataplane.TCP, node, "192.0.2.1:30081", ""), []string{"forward 127.0.0.1:4000 local 1.00"}},
		{"ssh", packet(dataplane.TCP, far, "192.0.2.1:22", "eth0"), []string{"not ours 192.0.2.1:22 local 1.00"}},
		{"policy", packet(dataplane.TCP, far, "192.0.2.1:23", "eth0"), []string{"drop 192.0.2.1:23 local 1.00"}},
		{"passing by", packet(dataplane.TCP, pod, "198.51.100.1:443", "veth1"), []string{"not ours 198.51.100.1:443 1.00"}},
	}
	for _, row := range rows {
		got := follow(t, serviceWalker(t), row.p)
		if want := strings.Join(row.want, "\n") + "\n"; ends(got) != want {
			t.Errorf("%s: got\n%swant\n%s", row.name, ends(got), want)
			for _, o := range got {
				t.Log(o.Steps)
			}
		}
	}
}

func follow(t rapid.TB, w *Walker, p Packet) []Outcome {
	t.Helper()
	all, err := w.Follow(p)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func through(t testing.TB, w *Walker, p Packet, h Hook) []Outcome {
	t.Helper()
	all, err := w.Through(p, h)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Rules whose ways double at each chain end in an error, not in days.
func TestFollowIsBounded(t *testing.T) {
	double := make(map[string]Chain)
	for i := range 60 {
		to := Jump(fmt.Sprintf("C%d", i+1))
		double[fmt.Sprintf("C%d", i)] = Chain{Rules: []Rule{{Target: to}, {Target: to}}}
	}
	double["C60"] = Chain{}
	double["PREROUTING"] = Chain{Rules: []Rule{{Target: Jump("C0")}}}
	split := Chain{Policy: "ACCEPT"}
	passedOver := Chain{Policy: "ACCEPT"}
	for range 40 {
		split.Rules = append(split.Rules, Rule{Probability: certain / 2, Target: OrMark(1)})
	}
	for range 100_000 {
		passedOver.Rules = append(passedOver.Rules, ParseRule("-m unknown --match 1 -j LOG"))
	}
	for name, chains := range map[string]map[string]Chain{
		"jumps": double, "splits": {"PREROUTING": split}, "steps": {"PREROUTING": passedOver},
	} {
		w := &Walker{Rules: Ruleset{Mangle: chains}}
		if all, err := w.Follow(packet(dataplane.TCP, "10.0.0.1:1", "10.0.0.2:80", "eth0")); !errors.Is(err, ErrTangled) {
			t.Errorf("%s: %d ways, %v", name, len(all), err)
		}
	}
}

func TestFollowOtherStates(t *testing.T) {
	w := serviceWalker(t)
	p := packet(dataplane.TCP, "10.1.0.9:5000", "10.96.0.5:80", "veth1")
	p.States = StateInvalid
	if got := ends(follow(t, w, p)); got != "drop 10.96.0.5:80 1.00\n" {
		t.Errorf("an invalid packet: %s", got)
	}
	p.States = StateEstablished | StateDNAT
	if got := ends(follow(t, w, p)); got != "forward 10.96.0.5:80 1.00\n" {
		t.Errorf("a packet of a known flow: %s", got)
	}
	p = packet(dataplane.TCP, "10.1.0.8:5000", "10.96.0.21:80", "veth1")
	p.Mark = 1
	if got := ends(follow(t, w, p)); got != "drop 10.1.0.2:8080 1.00\n" {
		t.Errorf("a packet whose first destination is filtered: %s", got)
	}
}

func TestWalkerForgets(t *testing.T) {
	w := serviceWalker(t)
	w.Forget = "AFF-"
	got := ends(follow(t, w, packet(dataplane.TCP, "10.1.0.9:5000", "10.96.0.21:80", "veth1")))
	if got != "forward 10.1.0.2:8080 1.00\n" {
		t.Errorf("got %s", got)
	}
}

// Each rule on the way is named, and one that is not understood is noted.
func TestSteps(t *testing.T) {
	got := follow(t, serviceWalker(t), packet(dataplane.TCP, "198.51.100.1:5000", "192.0.2.1:30080", "eth0"))
	want := `nat chain PREROUTING rule 1: -m comment --comment "not ours" -m limit --limit 1/sec -j LOG (passed over: not understood)
nat chain PREROUTING rule 2: -j KUBE-SERVICES
nat chain KUBE-SERVICES rule 2: -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
nat chain KUBE-NODEPORTS rule 1: -p tcp -m tcp --dport 30080 -j MARK --set-xmark 0x4000/0x4000
nat chain KUBE-NODEPORTS rule 2: -p tcp -m tcp --dport 30080 -j KUBE-SVC-A
nat chain KUBE-SVC-A rule 3: -p tcp -j DNAT --to-destination 10.1.0.3:8080
nat chain POSTROUTING rule 1: -j KUBE-POSTROUTING
nat chain KUBE-POSTROUTING rule 2: -j MARK --set-xmark 0x4000/0x0
nat chain KUBE-POSTROUTING rule 3: -j MASQUERADE --random-fully
`
	var steps strings.Builder
	for _, s := range got[2].Steps {
		fmt.Fprintln(&steps, s)
	}
	if steps.String() != want {
		t.Errorf("got\n%s", steps.String())
	}
	if n := len(got[2].Explain().Steps); n != 9 {
		t.Errorf("%d steps are explained", n)
	}
}

// What cannot be known is passed over and noted, unless another part of the
// rule decides.
func TestUnknown(t *testing.T) {
	rows := []struct {
		rule string
		note string // empty: the rule does not appear
	}{
		{"-m recent --name x --rcheck -j DROP", "not understood"},
		{"-p udp -m recent --name x --rcheck -j DROP", ""},
		{"-p tcp -m multiport --dports 80 -j DROP", "not understood"},
		{"-o eth0 -j DROP", "where the packet leaves"},
		{"-m set --match-set NOWHERE dst -j DROP", "the set is not known"},
		{"-m set --match-set STRANGE dst -j DROP", "the set is not known"},
		{"-i eth9 -m set --match-set NOWHERE dst -j DROP", ""},
		{"-m addrtype ! --dst-type LOCAL --limit-iface-in -j DROP", "addresses the device has"},
		{"-j NOTRACK", "NOTRACK is unknown"},
		{"-j LOOP", "LOOP is unknown"},
	}
	for _, row := range rows {
		rules := Ruleset{NAT: {
			"PREROUTING": {Name: "PREROUTING", Policy: "ACCEPT", Rules: []Rule{ParseRule(row.rule)}},
			"LOOP":       {Name: "LOOP", Rules: []Rule{{Target: Jump("LOOP")}}},
		}}
		w := &Walker{Rules: rules, Sets: map[string]Set{"STRANGE": {Type: "hash:net,iface"}}}
		got := follow(t, w, packet(dataplane.TCP, "10.0.0.1:1", "10.0.0.2:80", "eth0"))
		if len(got) != 1 || got[0].Verdict != Accepted {
			t.Fatalf("%s: %s", row.rule, ends(got))
		}
		steps := fmt.Sprint(got[0].Steps)
		if (row.note == "") != (steps == "[]") || !strings.Contains(steps, row.note) {
			t.Errorf("%s: steps %s, want a note that says %q", row.rule, steps, row.note)
		}
	}
}

func TestProbabilitiesAddUp(t *testing.T) {
	tx := bigTransaction(1, 100)
	w := &Walker{Rules: Ruleset{NAT: {
		"OUTPUT":          {Name: "OUTPUT", Rules: []Rule{{Target: Jump(tx.Chains[0].Name)}}},
		tx.Chains[0].Name: tx.Chains[0],
	}}}
	got := follow(t, w, packet(dataplane.TCP, "10.0.0.1:1", "10.0.0.2:80", ""))
	sum := 0.0
	for _, o := range got {
		sum += o.Probability
		if math.Abs(o.Probability-0.01) > 1e-6 {
			t.Errorf("%s is chosen with probability %f", o.Packet.Destination, o.Probability)
		}
	}
	if len(got) != 100 || math.Abs(sum-1) > 1e-9 {
		t.Errorf("%d outcomes, together %f", len(got), sum)
	}
}
