package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// TestLife follows a node from before its Node object exists to an agent that
// was killed and comes back.
// Proves S7.2.
func TestLife(t *testing.T) {
	s := newSite(t)
	e1, e2 := s.rig.Endpoints[0], s.rig.Endpoints[1]
	e1.Serve(t, rig.TCP, 8080)
	e2.Serve(t, rig.TCP, 8080)
	p := s.start("--detect-local-mode=NodeCIDR", "--iptables-min-sync-period=10ms")

	// The agent starts before its Node exists. It lives, and is not ready.
	s.eventuallyAnswers(livez, 200)
	s.eventuallyAnswers(healthz, 503)
	s.eventuallyAnswers(status+"/proxyMode", 503)
	bare := thisNode()
	bare.Spec = corev1.NodeSpec{}
	s.set(bare, web(), endpoints(e1))
	s.eventually("the agent waits for the podCIDR", func() (bool, string) {
		return strings.Contains(p.log.String(), "no Node node yet"), p.log.String()
	})
	s.set(thisNode())
	s.eventuallyAnswers(healthz, 200)
	s.eventuallyReaches(e1)

	if code, body := s.get(status + "/proxyMode"); code != 200 || body != "iptables" {
		t.Errorf("/proxyMode: %d %q", code, body)
	}
	if code, body := s.get(status + "/configz"); code != 200 || !strings.Contains(body, `"detectLocalMode": "NodeCIDR"`) {
		t.Errorf("/configz: %d %s", code, body)
	}
	if code, body := s.get(local + "/explain?src=" + s.rig.Client.Addr4.String() + "&iface=vethc&dst=" + vip.String()); code != 200 || !strings.Contains(body, `"agree": true`) {
		t.Errorf("/explain: %d %s", code, body)
	}
	if code, body := s.get(local + "/audit"); code != 200 || strings.Contains(body, `"error"`) || strings.Count(body, `"differences": []`) != 4 {
		t.Errorf("/audit: %d %s", code, body)
	}

	// What happened while the API server was away is found when it is back.
	if err := s.api.Gap(func() error { return s.api.Set(endpoints(e2)) }); err != nil {
		t.Fatal(err)
	}
	s.eventuallyReaches(e2)

	// Stopped, it leaves everything as it is; started again, it writes nothing.
	before := s.rules()
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if code := p.end(sig); sig == syscall.SIGTERM && code != 0 {
			t.Errorf("stopped with exit code %d", code)
		}
		if r := s.ask(); r.Server != e2.Name {
			t.Errorf("after %s: %s", sig, r)
		}
		p = s.start("--detect-local-mode=NodeCIDR")
		s.eventuallyAnswers(healthz, 200)
		if after := s.rules(); after != before {
			t.Errorf("after %s and a start the rules differ:\n%s\nwere\n%s", sig, after, before)
		}
		if n := s.metric("portway_sync_writes_total"); n != "0" {
			t.Errorf("after %s and a start %s writes", sig, n)
		}
	}

	// Cleaned up, nothing of it is left.
	p.end(syscall.SIGTERM)
	if out, err := s.rig.Node.Run(t.Context(), "portway", "--cleanup"); err != nil {
		t.Errorf("clean up: %v %s", err, out)
	}
	if rules := s.rules(); strings.Contains(rules, "KUBE") {
		t.Errorf("after the clean-up:\n%s", rules)
	}
}

// TestPortTaken: a server that cannot have its port says so, and is the end of
// a program that was told so.
func TestPortTaken(t *testing.T) {
	s := newSite(t)
	l, err := s.rig.Node.Listen(t.Context(), "127.0.0.1:10249")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const sentence = "serve /metrics on 127.0.0.1:10249: another process has this port; is a kube-proxy still running?"
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nbindAddressHardFail: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hard := s.start("--config=" + config)
	<-hard.done
	if code := hard.ProcessState.ExitCode(); code != 1 || !strings.Contains(hard.log.String(), "portway: "+sentence+"\n") {
		t.Errorf("exit code %d, said\n%s", code, hard.log)
	}

	soft := s.start()
	s.eventually("the program says so and goes on", func() (bool, string) {
		return strings.Contains(soft.log.String(), sentence), soft.log.String()
	})
	s.eventuallyAnswers(livez, 200)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.eventuallyAnswers(status+"/healthz", 200)
}

// TestNodeChanges: what the Node and its machine are may change at any time.
func TestNodeChanges(t *testing.T) {
	s := newSite(t)
	e1, c := s.rig.Endpoints[0], s.rig.Client
	e1.Serve(t, rig.TCP, 8080)
	svc := web()
	svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, 30080
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31080
	s.set(thisNode(), svc, endpoints(e1))
	s.start("--detect-local-mode=NodeCIDR", "--iptables-min-sync-period=10ms", "--iptables-sync-period=1s")
	s.eventuallyReaches(e1)

	// On loopback too.
	here := netip.MustParseAddrPort("127.0.0.1:30080")
	s.eventually("the NodePort answers on loopback", func() (bool, string) {
		r := rig.Probe{From: s.rig.Node, Proto: rig.TCP, To: here}.Send(t.Context())
		return r.Server == e1.Name, r.String()
	})
	if code, body := s.get(local + "/explain?dst=" + here.String()); code != 200 || !strings.Contains(body, `"agree": true`) || strings.Count(body, `"plane"`) != 1 {
		t.Errorf("/explain on loopback: %d %s", code, body)
	}

	// It is counted when the plane looks at its sockets the next time.
	s.eventually("the flow on loopback is counted", func() (bool, string) {
		n := s.metric("kubeproxy_iptables_localhost_nodeports_accepted_packets_total")
		return n != "0" && n != "absent", n
	})

	// Another podCIDR: the client is no pod any more, and is masqueraded.
	if r := s.ask(); r.Source.Addr() != c.Addr4 {
		t.Errorf("a pod was seen as %s", r.Source)
	}
	n := thisNode()
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.99.0.0/24", []string{"10.99.0.0/24"}
	s.set(n)
	s.eventually("the client is masqueraded", func() (bool, string) {
		r := s.ask()
		return r.Outcome == rig.Answered && r.Source.Addr() != c.Addr4, r.String()
	})

	// Another address: NodePorts answer there.
	extra := netip.MustParsePrefix("192.168.77.50/24")
	if err := s.rig.Node.AddAddr("eth0", extra); err != nil {
		t.Fatal(err)
	}
	s.eventually("the NodePort answers at the new address", func() (bool, string) {
		r := rig.Probe{From: s.rig.Up, Proto: rig.TCP, To: netip.AddrPortFrom(extra.Addr(), 30080)}.Send(t.Context())
		return r.Server == e1.Name && r.Source.Addr() == s.rig.Up.Addr4, r.String()
	})
	check := "http://" + extra.Addr().String() + ":31080/"
	s.eventuallyAnswers(check, 200)
	s.set(endpoints())
	s.eventuallyAnswers(check, 503)

	// No Node any more: no new traffic, but what is there goes on.
	s.set(endpoints(e1))
	if err := s.api.Delete(thisNode()); err != nil {
		t.Fatal(err)
	}
	s.eventuallyAnswers(healthz, 503)
	s.eventuallyAnswers(livez, 200)
	s.eventuallyReaches(e1)
}

// TestNatFlushed: what somebody else removes is back within a sync period.
func TestNatFlushed(t *testing.T) {
	s := newSite(t)
	e1 := s.rig.Endpoints[0]
	e1.Serve(t, rig.TCP, 8080)
	s.set(thisNode(), web(), endpoints(e1))
	p := s.start("--iptables-sync-period=1s", "--iptables-min-sync-period=10ms")
	s.eventuallyReaches(e1)
	if _, err := s.rig.Node.Run(t.Context(), "iptables", "-t", "nat", "-F"); err != nil {
		t.Fatal(err)
	}
	s.eventuallyReaches(e1)
	s.eventually("the repair is told", func() (bool, string) {
		return strings.Contains(p.log.String(), "Repaired what somebody else changed"), p.log.String()
	})
	s.eventuallyTold("ServiceRulesRepaired", "Node")
	if n := s.metric(`portway_repaired_differences_total{ip_family="IPv4",object="nat chain"}`); n == "0" || n == "absent" {
		t.Errorf("portway_repaired_differences_total is %s", n)
	}
}

// TestUserspace: another mode fills the same contract.
func TestUserspace(t *testing.T) {
	s := newSite(t)
	e1 := s.rig.Endpoints[0]
	e1.Serve(t, rig.TCP, 8080)
	s.set(thisNode(), web(), endpoints(e1))
	for range 2 {
		p := s.start("--proxy-mode=userspace", "--detect-local-mode=NodeCIDR")
		s.eventuallyAnswers(healthz, 200)
		s.eventuallyReaches(e1)
		if _, mode := s.get(status + "/proxyMode"); mode != "userspace" {
			t.Errorf("/proxyMode says %s", mode)
		}
		p.end(syscall.SIGKILL)
	}
	if out, err := s.rig.Node.Run(t.Context(), "portway", "--cleanup"); err != nil {
		t.Errorf("clean up: %v %s", err, out)
	}
	if rules := s.rules(); strings.Contains(rules, "KUBE") {
		t.Errorf("after the clean-up:\n%s", rules)
	}
}
