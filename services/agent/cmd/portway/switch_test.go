package main

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/services/agent"
)

// predecessor is what made Services work on the node before the agent in the
// mode that is to be.
type predecessor struct {
	name string
	// start returns once Services work; stop ends the program, if there is one.
	start func(*site) (stop func())
	// keepsFlows: what it leaves in the kernel works without it.
	keepsFlows bool
	// sees: what it leaves sees each packet of established connections, so it
	// stays for them.
	sees bool
}

// usableModes are the modes that this kernel can run. What their modules take to
// load is over then.
func usableModes(t *testing.T) []dataplane.Mode {
	var usable []dataplane.Mode
	for _, m := range agent.Modes(nil, ipvs.Options{}) {
		if m.Open != nil && m.Probe(t.Context(), dataplane.IPv4) == nil && m.Probe(t.Context(), dataplane.IPv6) == nil {
			usable = append(usable, m)
		}
	}
	if len(usable) < 2 {
		t.Fatalf("this kernel runs %d modes: there is nothing to switch between", len(usable))
	}
	return usable
}

func runs(m dataplane.Mode) predecessor {
	return predecessor{
		name: m.Name, keepsFlows: m.Has(dataplane.KeepFlows), sees: m.Retire != nil,
		start: func(s *site) func() {
			p := s.startMode(m.Name)
			return func() { p.end(syscall.SIGTERM) }
		},
	}
}

// TestSwitches goes from each mode to each other one, and from kube-proxy in
// each of its modes to each of ours, with traffic on: what is new works all the
// time, what is old goes on, and of the old mode nothing is left.
// Proves S7.2, S7.9, S9.7, calico#11753, kubernetes#102314.
func TestSwitches(t *testing.T) {
	modes := usableModes(t)
	before := kubeProxies(t, modes)
	for _, m := range modes {
		before = append(before, runs(m))
	}
	for _, to := range modes {
		clean, alone := traces(t, to)
		for _, from := range before {
			if from.name != to.Name {
				t.Run(from.name+" to "+to.Name, func(t *testing.T) { switchTo(t, from, to, clean, alone) })
			}
		}
	}
}

// traces are what a node has without a proxy, and what a mode leaves when it runs
// alone. Cleaned up, the node is as it was.
func traces(t *testing.T, m dataplane.Mode) (clean, alone []string) {
	s := newSwitchSite(t)
	clean = s.traces()
	s.startMode(m.Name).end(syscall.SIGTERM)
	alone = s.traces()
	if len(alone) <= len(clean) {
		t.Fatalf("%s leaves nothing in the kernel", m.Name)
	}
	s.cleanUp()
	sameTraces(t, "cleaned up after "+m.Name, s.traces(), clean)
	return clean, alone
}

func switchTo(t *testing.T, from predecessor, to dataplane.Mode, clean, alone []string) {
	s := newSwitchSite(t)
	stop := from.start(s)
	old := s.hold()
	traffic := s.traffic(from.keepsFlows)
	traffic.flows(before)
	traffic.enter(between)
	stop()
	p := s.startMode(to.Name)
	traffic.enter(after)
	s.eventually("the agent has removed what was left, but for what connections need", func() (bool, string) {
		log := p.log.String()
		return strings.Count(log, "Nothing is left of other proxy modes")+strings.Count(log, goOn) == len(dataplane.Families()), log
	})
	traffic.flows(after)
	traffic.end()
	for _, f := range old {
		if err := f.echo(); err != nil && from.keepsFlows {
			t.Errorf("the connection of before, %s, has ended: %v", f.way, err)
		}
	}
	left := s.traces()
	if from.sees {
		if !strings.Contains(p.log.String(), goOn) {
			t.Error("nobody is told that connections go on")
		}
		left = slices.DeleteFunc(left, func(line string) bool { return isNeeded(line) && !slices.Contains(alone, line) })
	}
	sameTraces(t, "after the switch", left, alone)
	p.end(syscall.SIGTERM)
	s.cleanUp()
	sameTraces(t, "cleaned up", s.traces(), clean)
}

// goOn is said of connections that still pass through what was left.
const goOn = "Connections go on through what another proxy mode left"

// isNeeded tells whether a trace is of what connections through IPVS need, or of
// what refuses new ones there.
func isNeeded(line string) bool {
	for _, part := range []string{"cat TCP ", "ipset KUBE-", "filter :KUBE-IPVS-FILTER", "filter :KUBE-IPVS-REJECT", "-j KUBE-IPVS-FILTER"} {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}

func (s *site) cleanUp() {
	s.t.Helper()
	if out, err := s.rig.Node.Run(s.t.Context(), "portway", "--cleanup"); err != nil {
		s.t.Errorf("clean up: %v %s", err, out)
	}
}

func sameTraces(t *testing.T, when string, have, want []string) {
	t.Helper()
	for _, line := range have {
		if !slices.Contains(want, line) {
			t.Errorf("%s there is still: %s", when, line)
		}
	}
	for _, line := range want {
		if !slices.Contains(have, line) {
			t.Errorf("%s there is no more: %s", when, line)
		}
	}
}

// nodePort is where the Service answers on the node.
var nodePort = netip.MustParseAddrPort("192.168.77.10:30080")

// vip6 is the Service's address of the other family.
var vip6 = netip.MustParseAddrPort("[fd00:96::10]:80")

// newSwitchSite has a Service of both families that is reached in every way.
func newSwitchSite(t *testing.T) *site {
	s := newSite(t)
	for _, e := range s.rig.Endpoints {
		e.Serve(t, rig.TCP, 8080)
	}
	svc := web()
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.Ports[0].NodePort = int32(nodePort.Port())
	svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, vip6.Addr().String())
	svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, corev1.IPv6Protocol)
	four, six := endpoints(s.rig.Endpoints...), endpoints(s.rig.Endpoints...)
	six.Name, six.AddressType = "web-2", discoveryv1.AddressTypeIPv6
	for i, e := range s.rig.Endpoints {
		six.Endpoints[i].Addresses = []string{e.Addr6.String()}
	}
	s.set(thisNode(), svc, four, six)
	return s
}

// startMode runs the agent in a mode, and waits until Services work.
func (s *site) startMode(name string) *process {
	s.t.Helper()
	p := s.start("--proxy-mode="+name, "--mode-fallback=error", "--detect-local-mode=NodeCIDR")
	s.eventuallyAnswers(healthz, 200)
	return p
}

// virtualServers is where a kernel with IPVS tells of them.
func virtualServers() string {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		return os.DevNull
	}
	return "/proc/net/ip_vs"
}

// traces are what a proxy has in the kernel, by name: chains, rules in chains
// of others, sets, virtual servers, tables, addresses. Not what is in them: ports are random in
// userspace mode.
func (s *site) traces() []string {
	s.t.Helper()
	var all []string
	collect := func(keep func(line string) (string, bool), argv ...string) {
		out, err := s.rig.Node.Run(s.t.Context(), argv...)
		if err != nil {
			s.t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if kept, ok := keep(strings.TrimSpace(line)); ok {
				all = append(all, argv[0]+" "+kept)
			}
		}
	}
	everything := func(line string) (string, bool) { return line, line != "" }
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		table := ""
		collect(func(line string) (string, bool) {
			if strings.HasPrefix(line, "*") {
				table = line[1:]
			}
			name, _, _ := strings.Cut(line, " ")
			ours := strings.HasPrefix(line, ":KUBE-") || strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A KUBE-")
			if strings.HasPrefix(line, "-A ") {
				name = line
			}
			return table + " " + name, ours
		}, program)
	}
	collect(everything, "ipset", "list", "-n")
	collect(func(line string) (string, bool) {
		return line, slices.ContainsFunc([]string{"TCP ", "UDP "}, func(p string) bool { return strings.HasPrefix(line, p) })
	}, "cat", virtualServers())
	collect(func(line string) (string, bool) { return line, strings.HasSuffix(line, " "+kubeProxyTable) }, "nft", "list", "tables")
	collect(func(line string) (string, bool) {
		fields := strings.Fields(line)
		return strings.Join(fields[1:min(4, len(fields))], " "), len(fields) > 3
	}, "ip", "-o", "address", "show", "scope", "global")
	slices.Sort(all)
	return all
}
