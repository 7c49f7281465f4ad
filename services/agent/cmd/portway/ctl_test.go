package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// ctl is portwayctl on the node of a site. It is a program of another module,
// which this one must not import.
type ctl struct {
	*site
	program, kubeconfig string
}

func (s *site) ctl() *ctl {
	s.t.Helper()
	dir := s.t.TempDir()
	c := &ctl{s, filepath.Join(dir, "portwayctl"), filepath.Join(dir, "kubeconfig")}
	build := exec.CommandContext(s.t.Context(), "go", "build", "-o", c.program, "./cmd/portwayctl")
	build.Dir = filepath.Join("..", "..", "..", "ctl")
	if out, err := build.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", build, err, out)
	}
	config := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + strconv.Quote(s.api.URL()) + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(c.kubeconfig, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// run returns the exit code and all that was said.
func (c *ctl) run(args ...string) (int, string) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), c.program, append(args, "--socket="+socket, "--kubeconfig="+c.kubeconfig)...)
	var out []byte
	err := c.rig.Node.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil && cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// want runs it and checks the exit code and a part of what is said.
func (c *ctl) want(code int, said string, args ...string) {
	c.t.Helper()
	if have, out := c.run(args...); have != code || !strings.Contains(out, said) {
		c.t.Errorf("portwayctl %s: exit code %d, want %d; want %q in\n%s", strings.Join(args, " "), have, code, said, out)
	}
}

// TestCtl asks a real agent, and then what was saved of its node, and gets the
// same answers, before and after damage; then has the agent repair it.
func TestCtl(t *testing.T) {
	for mode, set := range map[string]string{"iptables": "KUBE-IPT-CLUSTER-IP", "userspace": "KUBE-USR-CLUSTER-IP"} {
		t.Run(mode, func(t *testing.T) { askMode(t, mode, set) })
	}
}

// askMode asks in one mode. The set is one that it needs.
func askMode(t *testing.T, mode, set string) {
	s := newSite(t)
	e1, e2 := s.rig.Endpoints[0], s.rig.Endpoints[1]
	slice := endpoints(e1, e2)
	slice.Endpoints[1].Conditions.Ready = new(bool)
	lb := web()
	lb.Name, lb.UID, lb.Spec.ClusterIP, lb.Spec.ClusterIPs = "lb", "u-lb", "10.96.0.11", []string{"10.96.0.11"}
	lb.Spec.Type, lb.Spec.ExternalTrafficPolicy, lb.Spec.SessionAffinity = "LoadBalancer", "Local", corev1.ServiceAffinityClientIP
	lb.Spec.Ports[0].NodePort, lb.Spec.LoadBalancerSourceRanges = 30080, []string{"203.0.113.0/24"}
	lb.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	node := web()
	node.Spec.Type, node.Spec.Ports[0].NodePort = "NodePort", 30081
	s.set(thisNode(), node, slice, lb)
	// The agent must not repair what is damaged before it is asked to.
	s.start("--detect-local-mode=NodeCIDR", "--proxy-mode="+mode, "--iptables-sync-period=1h")
	s.eventuallyAnswers(healthz, 200)
	c := s.ctl()

	pod := s.rig.Client.Addr4.String()
	c.want(0, "in        "+e1.Addr4.String()+":8080", "explain", "tcp", pod, "svc/shop/web")
	c.want(0, "out       "+e2.Addr4.String()+":8080: it is not ready", "explain", "tcp", pod, "svc/shop/web")
	c.want(0, "from pod", "explain", "tcp", pod, "svc/shop/web")

	flows := [][]string{
		{"tcp", pod, "svc/shop/web"},
		{"tcp", "node", "10.96.0.10:80"},
		{"tcp", pod, "10.96.0.10:81"},
		{"udp", pod, "10.96.0.10:80"},
		{"tcp", "node", "svc/shop/lb"},
		{"tcp", pod, "node/node:30080"},
		{"tcp", "203.0.113.9", "198.51.100.1:80", "--iface=eth0"},
		{"tcp", "192.0.2.9", "198.51.100.1:80", "--iface=eth0"},
		{"tcp", pod, "192.0.2.9:80"},
		{"icmp", pod, "10.96.0.10"},
		{"tcp", "node", "127.0.0.1:30081"},
		{"tcp", "node", "[fd00:96::1]:80"},
	}
	check := func(state string, agree bool, flows ...[]string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "node.tar")
		c.want(0, "", "dump", file)
		disagreed := false
		for _, f := range flows {
			args := append([]string{"explain", "-o", "json"}, f...)
			live, said := c.run(args...)
			dead, read := c.run(append(args, "--from="+file)...)
			if live != dead || said != read {
				t.Errorf("%s: %v: the agent's answer, with exit code %d:\n%s\nwhat was saved gives %d:\n%s", state, f, live, said, dead, read)
			}
			disagreed = disagreed || live == 1
		}
		if disagreed == agree {
			t.Errorf("%s: all agree: %t", state, !disagreed)
		}
		_, said := c.run("audit")
		_, read := c.run("audit", "--from="+file)
		for line := range strings.Lines(said) {
			if !strings.Contains(read, line) {
				t.Errorf("%s: the agent's audit says %q, which what was saved does not:\n%s", state, line, read)
			}
		}
	}
	check("intact", true, flows...)
	c.want(0, mode+" IPv4: as it should be", "audit")
	for _, damage := range [][]string{{"iptables", "-t", "nat", "-F"}, {"ipset", "flush", set}} {
		if out, err := s.rig.Node.Run(t.Context(), damage...); err != nil {
			t.Fatal(err, out)
		}
	}
	check("damaged", false, flows[:4]...)
	c.want(1, "(shop/web:http/TCP)", "audit")
	c.want(0, "ipset "+set, "resync")
	c.want(0, mode+" IPv4: as it should be", "audit")
	c.want(0, "agree   yes", "explain", "tcp", pod, "svc/shop/web")
}
