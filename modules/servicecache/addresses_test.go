package servicecache

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/portway/portway/modules/dataplane"
)

func backed(o ...serviceOption) []any {
	return []any{
		testService("s", append([]serviceOption{exposed}, o...)...),
		testSlice("s", "1", ep(e1, "n1", "rs-")), testSlice("s", "6", ep("fd00:244:0:1::1", "n1", "rs-")),
	}
}

func lbIngress(in ...corev1.LoadBalancerIngress) serviceOption {
	return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = in }
}

// Proves S5.1.
func TestLoadBalancerIngress(t *testing.T) {
	proxy, vip := corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	const served = " => 10.244.1.1:8080 masq=yes"
	for name, tt := range map[string]struct {
		ingress []corev1.LoadBalancerIngress
		want    []string
	}{
		"ipMode Proxy gets no rule":     {[]corev1.LoadBalancerIngress{{IP: lbIP, IPMode: &proxy}}, []string{"out " + lbIP + ":80 => not ours"}},
		"ipMode VIP does":               {[]corev1.LoadBalancerIngress{{IP: lbIP, IPMode: &vip}}, []string{"out " + lbIP + ":80" + served}},
		"ipMode nil does":               {[]corev1.LoadBalancerIngress{{IP: lbIP}}, []string{"out " + lbIP + ":80" + served}},
		"a hostname is ignored":         {[]corev1.LoadBalancerIngress{{Hostname: "lb.example"}, {IP: lbIP}}, []string{"out " + lbIP + ":80" + served}},
		"only the listed port is taken": {[]corev1.LoadBalancerIngress{{IP: lbIP}}, []string{"out " + lbIP + ":22 => not ours"}},
		"a link-local one is served":    {[]corev1.LoadBalancerIngress{{IP: "169.254.7.7"}}, []string{"out 169.254.7.7:80" + served}},
		"a loopback one is not":         {[]corev1.LoadBalancerIngress{{IP: "127.0.0.1"}}, []string{"node 127.0.0.1:80 => not ours"}},
		"leading zeros are decimal":     {[]corev1.LoadBalancerIngress{{IP: "198.051.100.001"}}, []string{"out " + lbIP + ":80" + served}},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, build(newCache(t, testConfig(), backed(lbIngress(tt.ingress...))...)), tt.want...)
		})
	}
}

// kubernetes#73157: an address of another family is skipped and told once; the
// rest works.
// Proves S1.6.
func TestAddressesOfOtherFamily(t *testing.T) {
	c := newCache(t, testConfig(), backed(clusterIPs(vip4), lbIngress(corev1.LoadBalancerIngress{IP: "2001:db8::1"}, corev1.LoadBalancerIngress{IP: lbIP}), externalIPs("2001:db8::2", extIP))...)
	s, problems := c.Build(time.Time{})
	expect(t, s, "out "+lbIP+":80 => 10.244.1.1:8080 masq=yes", "out "+extIP+":80 => 10.244.1.1:8080 masq=yes",
		"out6 [2001:db8::1]:80 => not ours", "out6 [2001:db8::2]:80 => not ours")
	var fields []string
	for _, p := range problems {
		if p.Reason == FamilySkipped {
			fields = append(fields, p.Field)
		}
	}
	if slices.Sort(fields); !equal(fields, []string{"spec.externalIPs", "status.loadBalancer.ingress"}) {
		t.Errorf("told of %v: %v", fields, problems)
	}
	set(t, c, testService("s", exposed, clusterIPs(vip4), lbIngress(corev1.LoadBalancerIngress{IP: "2001:db8::1"}), externalIPs("2001:db8::2")))
	if _, again := c.Build(time.Time{}); len(again) > 0 {
		t.Errorf("told again: %v", again)
	}
}

// Proves S5.6, S5.7, S5.8.
func TestSourceRanges(t *testing.T) {
	const all = `
		out 198.51.100.1:80 => 10.244.1.1:8080 masq=yes
		node 198.51.100.1:80 => 10.244.1.1:8080 masq=yes
		pod 198.51.100.1:80 => 10.244.1.1:8080 masq=yes
		out6 [2001:db8:1::1]:80 => [fd00:244:0:1::1]:8080 masq=yes`
	const closed = `
		out 198.51.100.1:80 => drop
		node 198.51.100.1:80 => drop
		pod 198.51.100.1:80 => drop
		out6 [2001:db8:1::1]:80 => drop
		node6 [2001:db8:1::1]:80 => drop`
	lb := lbIngress(corev1.LoadBalancerIngress{IP: lbIP}, corev1.LoadBalancerIngress{IP: "2001:db8:1::1"})
	for name, tt := range map[string]struct {
		ranges []string
		want   string
	}{
		"none":                  {nil, all},
		"blanks do not count":   {[]string{"", " "}, all},
		"a /0 is no ranges":     {[]string{"10.0.0.0/8", "0.0.0.0/0"}, all},
		"a /0 of either family": {[]string{"::/0", "10.0.0.0/8"}, all},
		"blanks are trimmed, host bits masked (k8s#40590)": {[]string{" 203.0.113.77/24 "}, `
			out 198.51.100.1:80 => 10.244.1.1:8080 masq=yes
			pod 198.51.100.1:80 => drop
			node 198.51.100.1:80 => drop`},
		"a family without a valid range is closed (k8s#33035)": {[]string{"203.0.113.0/24", "4700::/32"}, `
			out 198.51.100.1:80 => 10.244.1.1:8080 masq=yes
			out6 [2001:db8:1::1]:80 => drop`},
		"invalid ones allow nobody":        {[]string{"foo", "10.0.0.1", "1.2.3.4/33"}, closed},
		"invalid ones do not spoil others": {[]string{"foo", "203.0.113.0/24"}, `out 198.51.100.1:80 => 10.244.1.1:8080 masq=yes`},
		"the node is judged by its address in the API (k8s#88698)": {[]string{"192.168.0.1/32", "fd00:c0::/64"}, `
			node 198.51.100.1:80 => 10.244.1.1:8080 masq=yes
			node6 [2001:db8:1::1]:80 => [fd00:244:0:1::1]:8080 masq=yes
			out 198.51.100.1:80 => drop`},
		"LB IPs only (k8s#109575)": {[]string{"192.0.2.0/24"}, closed + `
			out 198.51.100.2:80 => 10.244.1.1:8080 masq=yes
			out 192.168.0.1:30080 => 10.244.1.1:8080 masq=yes
			pod 10.96.0.10:80 => 10.244.1.1:8080 masq=no`},
		"leading zeros are decimal": {[]string{"203.000.0113.0/24"}, `out 198.51.100.1:80 => 10.244.1.1:8080 masq=yes`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, testConfig(), backed(lb, sourceRanges(tt.ranges...))...)
			expect(t, build(c), lines(tt.want)...)
		})
	}
	t.Run("before anything else: unlisted is dropped even when there is no endpoint", func(t *testing.T) {
		c := newCache(t, testConfig(), testService("s", exposed, sourceRanges("192.0.2.0/24")))
		expect(t, build(c), "out "+lbIP+":80 => drop", "out "+extIP+":80 => reject")
	})
	t.Run("while the Node is unknown it is not listed", func(t *testing.T) {
		c, err := New(testConfig())
		if err != nil {
			t.Fatal(err)
		}
		set(t, c, append(backed(sourceRanges("0.0.0.0/1", "128.0.0.0/1")), testLocal())...)
		expect(t, build(c), "node "+lbIP+":80 => drop")
		set(t, c, testNode())
		expect(t, build(c), "node "+lbIP+":80 => 10.244.1.1:8080 masq=yes")
	})
	t.Run("an invalid one is told once", func(t *testing.T) {
		c := newCache(t, testConfig(), backed(sourceRanges("foo", " "))...)
		_, problems := c.Build(time.Time{})
		if len(problems) != 1 || problems[0].Reason != InvalidRange || !strings.Contains(problems[0].Message, `"foo"`) {
			t.Errorf("told %v", problems)
		}
	})
}

// Proves S5.9.
func TestExternalIPPolicy(t *testing.T) {
	const served, refused = "out " + extIP + ":80 => 10.244.1.1:8080 masq=yes", "out " + extIP + ":80 => not ours"
	for name, tt := range map[string]struct {
		policy ExternalIPs
		ranges []string
		want   string
	}{
		"all":        {AllExternalIPs, nil, served},
		"none":       {NoExternalIPs, nil, refused},
		"listed":     {ListedExternalIPs, []string{"10.0.0.0/8", "198.51.100.0/24"}, served},
		"not listed": {ListedExternalIPs, []string{"10.0.0.0/8"}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig()
			config.ExternalIPs = tt.policy
			for _, r := range tt.ranges {
				config.ExternalIPRanges = append(config.ExternalIPRanges, netip.MustParsePrefix(r))
			}
			s, problems := newCache(t, config, backed()...).Build(time.Time{})
			expect(t, s, tt.want, "out "+lbIP+":80 => 10.244.1.1:8080 masq=yes")
			if told := len(problems) == 1 && problems[0].Reason == AddressRefused; told != (tt.want == refused) {
				t.Errorf("told %v", problems)
			}
		})
	}
}

// kubernetes#66966: an externalIP that is a node's address takes its port and
// no other.
// Proves S5.10.
func TestExternalIPOfNode(t *testing.T) {
	const other = "192.168.0.7" // another node
	expect(t, build(newCache(t, testConfig(), backed(externalIPs(nodeIP4, other))...)),
		"out "+nodeIP4+":80 => 10.244.1.1:8080 masq=yes", "out "+nodeIP4+":22 => not ours", "out "+nodeIP4+":30080 => 10.244.1.1:8080 masq=yes",
		"pod "+other+":80 => 10.244.1.1:8080 masq=yes", "pod "+other+":22 => not ours", "node "+other+":22 => not ours")
}

// Proves S5.2, S5.5.
func TestNodePortAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		list     []string
		want     string
		loopback bool // with LoopbackNodePorts set
		named    bool // without
	}{
		"default all":               {nil, "10.0.0.5 192.168.0.1 fd00:c0::1 fe80::1", true, false},
		"all":                       {[]string{"all"}, "10.0.0.5 192.168.0.1 fd00:c0::1 fe80::1", true, false},
		"primary":                   {[]string{"primary"}, "192.168.0.1 fd00:c0::1", false, false},
		"localhost":                 {[]string{"localhost"}, "", true, true},
		"primary and localhost":     {[]string{"primary", "localhost"}, "192.168.0.1 fd00:c0::1", true, true},
		"a family without a CIDR":   {[]string{"10.0.0.0/8"}, "10.0.0.5 fd00:c0::1 fe80::1", true, false},
		"a CIDR of each family":     {[]string{"10.0.0.0/8", "fd00::/8"}, "10.0.0.5 fd00:c0::1", false, false},
		"a CIDR with loopback":      {[]string{"0.0.0.0/0", "fd00::/8"}, "10.0.0.5 192.168.0.1 fd00:c0::1", true, false},
		"a CIDR that is loopback":   {[]string{"127.0.0.0/8", "fd00::/8"}, "fd00:c0::1", true, true},
		"leading zeros are decimal": {[]string{"010.0.0.0/8", "fd00::/8"}, "10.0.0.5 fd00:c0::1", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, byDefault := range []bool{true, false} {
				config := testConfig()
				config.NodePortAddresses = tt.list
				local := testLocal("10.0.0.5/24", "fe80::1/64")
				local.LoopbackNodePorts = byDefault
				n := build(newCache(t, config, local)).Node()
				if got := strings.Join(addrs(n.NodePortAddrs), " "); got != tt.want {
					t.Errorf("NodePorts answer at %s, want %s", got, tt.want)
				}
				if want := byDefault && tt.loopback || tt.named; n.LoopbackNodePorts != want {
					t.Errorf("on loopback: %t, want %t", n.LoopbackNodePorts, want)
				}
			}
		})
	}
	if _, err := New(Config{NodePortAddresses: []string{"foo", "10.0.0.0/33"}}); err == nil || !strings.Contains(err.Error(), "foo") || !strings.Contains(err.Error(), "/33") {
		t.Errorf("error %v, want both entries named", err)
	}
}

func addrs(as []netip.Addr) []string {
	var out []string
	for _, a := range as {
		out = append(out, a.String())
	}
	return out
}

// An address that is only some Service's LB IP or externalIP does not answer
// on NodePorts; a node address keeps its NodePorts although a Service lists it.
// Proves S5.3.
func TestAddressesOnlyOfServices(t *testing.T) {
	c := newCache(t, testConfig(), testLocal("198.51.100.1/32", "198.51.100.2/32", "10.0.0.5/24", "10.0.0.6/32"))
	expect := func(want string) {
		t.Helper()
		got := slices.DeleteFunc(addrs(build(c).Node().NodePortAddrs), func(s string) bool { return strings.Contains(s, ":") })
		if s := strings.Join(got, " "); s != want {
			t.Errorf("NodePorts answer at %s, want %s", s, want)
		}
	}
	expect("10.0.0.5 10.0.0.6 192.168.0.1 198.51.100.1 198.51.100.2")
	set(t, c, testService("s", exposed))
	expect("10.0.0.5 10.0.0.6 192.168.0.1")
	set(t, c, testService("s", exposed, externalIPs(nodeIP4, "10.0.0.5", "10.0.0.6")))
	expect("10.0.0.5 192.168.0.1 198.51.100.2")
	set(t, c, testNode(func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "10.0.0.6"})
	}))
	expect("10.0.0.5 10.0.0.6 192.168.0.1 198.51.100.2")
	c.DeleteService(dataplane.ServiceName{Namespace: "ns", Name: "s"})
	expect("10.0.0.5 10.0.0.6 192.168.0.1 198.51.100.1 198.51.100.2")
}

// Proves S2.6.
func TestParseAddr(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.000.00.01": "10.0.0.1", "::ffff:010.0.0.1": "10.0.0.1", "::1": "::1", "0::0": "::",
		"fd00::0a": "fd00::a", "": "", "1.2.3": "", "1.2.3.256": "", "fe80::1%eth0": "", "1.2.3.4 ": "", "..": "", "0": "", ":0.": "", "0x10.1.1.1": "",
	} {
		a, err := parseAddr(text)
		if got := a.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q is %s, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		" 10.1.2.3/8 ": "10.0.0.0/8", "::ffff:10.0.0.0/104": "10.0.0.0/8", "fd00::1/64": "fd00::/64", "10.0.0.1": "", "/": "", "10.0.0.0/-1": "", "10.0.0.0/08": "",
	} {
		p, err := parsePrefix(text)
		if (err == nil) != (want != "") || err == nil && p.String() != want {
			t.Errorf("%q is %s, %v; want %q", text, p, err, want)
		}
	}
}
