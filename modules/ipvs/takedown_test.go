package ipvs

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// retire retires the mode and returns how many connections go on.
func (m *memory) retire(t *testing.T, r dataplane.Retirement) int {
	t.Helper()
	r.Family = m.family
	flows, err := m.takeDown(t.Context(), r, []netfilter.Kernel{m.rules})
	if err != nil {
		t.Fatal(err)
	}
	return flows
}

// left describes what there is: chains, sets, virtual servers, addresses.
func (m *memory) left(t *testing.T) string {
	t.Helper()
	var all []string
	for _, table := range netfilter.Tables() {
		if err := m.rules.Save(t.Context(), []netfilter.Table{table}, func(_ netfilter.Table, c netfilter.Chain) error {
			if c.Policy == "" {
				all = append(all, c.Name)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	sets, err1 := m.rules.Sets(t.Context(), nil)
	servers, err2 := m.ipvs.List(t.Context(), m.family)
	locals, err3 := m.device.List(t.Context(), m.family)
	if err1 != nil || err2 != nil || err3 != nil {
		all = append(all, "no device")
	}
	if len(sets) > 0 {
		all = append(all, "sets")
	}
	for i := range servers {
		all = append(all, servers[i].Key.String()+": "+m.reals(t, servers[i].Key))
	}
	for _, l := range locals {
		all = append(all, l.String())
	}
	return strings.Join(all, "; ")
}

// udp is a Service like a numbered one.
func udp(i, endpoints int) *dataplane.ServicePort {
	sp := numbered(i, endpoints)
	sp.Name.Protocol = dataplane.UDP
	return sp
}

// When another mode has taken over, what IPVS must see each packet of goes on: to
// the endpoint that it has, and nothing else does. Its address refuses, as before,
// what is new there.
// Proves S7.9.
func TestEstablishedFlowsOutliveTheMode(t *testing.T) {
	for _, c := range []struct {
		name             string
		active, inactive int
		gone             time.Duration
	}{
		{"established", 1, 0, 15 * time.Minute},
		{"closing", 0, 3, 2 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMemory(dataplane.IPv4, Options{})
			m.sync(t, snapshot(t, dataplane.Empty(), with(numbered(1, 2), numbered(3, 2), udp(2, 1))), false)
			m.connections(t, clusterKey(1, dataplane.TCP), 1, c.active, c.inactive)
			m.connections(t, clusterKey(2, dataplane.UDP), 0, 0, 9)
			const left = "KUBE-IPVS-FILTER; KUBE-IPVS-REJECT; sets; TCP 10.96.0.1:80: 10.128.1.1=0; local route 10.96.0.1/32"
			messages := 0
			for _, age := range []time.Duration{0, time.Minute, c.gone - 1} {
				if n := m.retire(t, dataplane.Retirement{Age: age}); n != c.active+c.inactive {
					t.Errorf("after %s %d connections go on, want %d", age, n, c.active+c.inactive)
				}
				if got := m.left(t); got != left {
					t.Errorf("after %s there is %s, want %s", age, got, left)
				}
				if messages != 0 && m.ipvs.Messages() != messages {
					t.Errorf("after %s virtual servers are changed though nothing has", age)
				}
				messages = m.ipvs.Messages()
			}
			m.guards(t, "10.96.0.1")
			if n := m.retire(t, dataplane.Retirement{Age: c.gone}); n != 0 {
				t.Errorf("%d connections go on", n)
			}
			if got := m.left(t); got != "no device" {
				t.Errorf("at the end there is %s", got)
			}
		})
	}
}

// guards wants new flows to an address to be rejected where packets for the node
// itself pass, and others not to be.
func (m *memory) guards(t *testing.T, addr string) {
	t.Helper()
	var rules []string
	if err := m.rules.Save(t.Context(), []netfilter.Table{netfilter.Filter}, func(_ netfilter.Table, c netfilter.Chain) error {
		for _, r := range c.Rules {
			if c.Name == "INPUT" || c.Name == chainFilter {
				rules = append(rules, c.Name+" "+r.String())
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(rules, "\n")
	for _, want := range []string{
		"INPUT -m comment --comment \"kubernetes ipvs access filter\" -m conntrack --ctstate NEW -j KUBE-IPVS-FILTER",
		"KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j KUBE-IPVS-REJECT",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no rule %s among\n%s", want, text)
		}
	}
	sets, err := m.rules.Sets(t.Context(), func(name string) bool { return name == setIPs.name(m.family) })
	if err != nil || len(sets) != 1 {
		t.Fatal(err, sets)
	}
	want := netip.MustParseAddr(addr)
	for _, e := range sets[0].Entries {
		if e.Net.Addr() == want {
			return
		}
	}
	t.Errorf("%s is not in %+v", want, sets[0])
}

// The mode may come back while flows go on.
func TestTakenDownAndBack(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	want := snapshot(t, dataplane.Empty(), with(numbered(1, 2)))
	m.sync(t, want, false)
	m.connections(t, clusterKey(1, dataplane.TCP), 1, 1, 0)
	m.retire(t, dataplane.Retirement{})
	m.open(dataplane.IPv4, Options{})
	m.sync(t, want, false)
	if got := m.reals(t, clusterKey(1, dataplane.TCP)); got != "10.128.1.0=1 10.128.1.1=1" {
		t.Errorf("back again: %s", got)
	}
	m.settled(t, want)
}

// proxy is what kube-proxy has in ipvs mode for one Service, with connections
// to its ClusterIP and to its NodePort, and virtual servers of others.
func (m *memory) proxy(t *testing.T) (clusterIP, nodePort kernel.Key, others []kernel.Key) {
	t.Helper()
	vip, node := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("192.168.77.10")
	tcp := func(a netip.Addr, port uint16) kernel.Key {
		return kernel.Key{Protocol: dataplane.TCP, Addr: a, Port: port}
	}
	clusterIP, nodePort = tcp(vip, 80), tcp(node, 20001)
	others = []kernel.Key{
		tcp(node, 443), tcp(netip.MustParseAddr("192.0.2.9"), 20001), {Protocol: dataplane.UDP, Addr: node, Port: 20001},
	}
	if err := m.device.BindDown(t.Context(), vip); err != nil {
		t.Fatal(err)
	}
	endpoint := netip.MustParseAddrPort("10.128.1.0:8080")
	for _, k := range append([]kernel.Key{clusterIP, nodePort}, others...) {
		refused, err := m.ipvs.Apply(t.Context(), []kernel.Op{
			{Verb: kernel.AddServer, Key: k, Server: kernel.Server{Scheduler: "rr"}},
			{Verb: kernel.AddReal, Key: k, Real: endpoint, Weight: 1},
		})
		if err != nil || len(refused) > 0 {
			t.Fatal(err, refused)
		}
		if err := m.ipvs.Connections(k, kernel.Real{Addr: endpoint, Active: 1}); err != nil {
			t.Fatal(err)
		}
	}
	sets := []netfilter.Set{setClusterIP.empty(m.family), setNodePort.of(dataplane.TCP).empty(m.family)}
	sets[0].Entries = []netfilter.SetEntry{{Net: netip.PrefixFrom(vip, 32), Port: 80, Protocol: dataplane.TCP}}
	sets[1].Entries = []netfilter.SetEntry{{Port: 20001}}
	if err := m.rules.ChangeSets(t.Context(), netfilter.SetPlan{Create: sets}); err != nil {
		t.Fatal(err)
	}
	m.local = func() (func(netip.Addr) bool, error) {
		return func(a netip.Addr) bool { return a == node || a == vip }, nil
	}
	return clusterIP, nodePort, others
}

// What kube-proxy leaves in its ipvs mode goes, its virtual servers for NodePorts
// at the node's addresses too, and those of others stay.
// Proves S7.9, S9.7.
func TestKubeProxysServersGo(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	clusterIP, nodePort, others := m.proxy(t)
	if n := m.retire(t, dataplane.Retirement{}); n != 2 {
		t.Errorf("%d connections go on, want 2", n)
	}
	for _, k := range []kernel.Key{clusterIP, nodePort} {
		if got := m.reals(t, k); got != "10.128.1.0=0" {
			t.Errorf("%s, with a connection: %s", k, got)
		}
	}
	if list, err := m.device.List(t.Context(), m.family); err != nil || len(list) != 1 || list[0].Bound {
		t.Errorf("the address is not local by a route alone: %v, %v", list, err)
	}
	m.retire(t, dataplane.Retirement{Age: 15 * time.Minute})
	for _, k := range []kernel.Key{clusterIP, nodePort} {
		if got := m.reals(t, k); got != "none" {
			t.Errorf("%s, 15 minutes later: %s", k, got)
		}
	}
	for _, k := range others {
		if got := m.reals(t, k); got != "10.128.1.0=1" {
			t.Errorf("%s of somebody else: %s", k, got)
		}
	}
}

// Where our ipvs mode takes over from kube-proxy's it serves NodePorts behind
// aliases, so kube-proxy's virtual servers for them are in nobody's use.
// Proves S9.7.
func TestKubeProxysNodePortsGoWhileInUse(t *testing.T) {
	m := newMemory(dataplane.IPv4, Options{})
	clusterIP, nodePort, others := m.proxy(t)
	want := snapshot(t, dataplane.Empty(), with(numbered(1, 1)))
	m.sync(t, want, false)
	m.local = func() (func(netip.Addr) bool, error) {
		return func(a netip.Addr) bool { return a == nodePort.Addr }, nil
	}
	for _, step := range []struct {
		age   time.Duration
		flows int
		reals string
	}{{0, 1, "10.128.1.0=0"}, {15 * time.Minute, 0, "none"}} {
		if n := m.retire(t, dataplane.Retirement{InUse: true, Age: step.age}); n != step.flows {
			t.Errorf("after %s %d connections go on, want %d", step.age, n, step.flows)
		}
		if got := m.reals(t, nodePort); got != step.reals {
			t.Errorf("%s after %s: %s, want %s", nodePort, step.age, got, step.reals)
		}
	}
	m.settled(t, want)
	for _, k := range append(others, clusterIP) {
		if got := m.reals(t, k); got != "10.128.1.0=1" {
			t.Errorf("%s: %s", k, got)
		}
	}
}
