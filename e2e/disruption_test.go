package e2e_test

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/e2e/cluster"
)

// What others need too is disturbed here, so nothing else runs meanwhile.
var _ = Describe("Disruption", Serial, anyFamily, func() {
	It("loses no request while the agent is replaced, and while it is killed", keepsFlows, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 2)
		svc := w.service(ctx, "web", nodePorts)
		load := w.load(ctx, svc)
		for _, client := range clients[:2] {
			// First replaced, then killed: the kubelet lets a container wait the
			// longer the more often it has died, and that of a new pod has not.
			renewAgent(ctx, client.node)
			killAgent(ctx, client.node)
		}
		Expect(load.Stop()).To(Succeed())
		// It does not only live, it works.
		w.scale(ctx, "web", 3)
		for _, client := range clients[:2] {
			expectAnswers(ctx, client.pod, http(svc), w.podNames(ctx, "web")...)
		}
	})

	It("serves again once the agent that was killed is back", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "dns", 2)
		svc := w.service(ctx, "dns", nodePorts)
		n := clients[0].node
		socket, err := cluster.OpenUDP(ctx, udpNodePort(svc, n)[0].To.String())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(socket.Close)
		answers := func() (string, error) { return socket.Ask("hostname") }
		Eventually(ctx, answers).Should(BeElementOf(w.podNames(ctx, "dns")))
		renewAgent(ctx, n)
		killAgent(ctx, n)
		// The flow of an old socket too, not only new ones (kubernetes#125467).
		Eventually(ctx, answers).Should(BeElementOf(w.podNames(ctx, "dns")))
		w.scale(ctx, "dns", 3)
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "dns")...)
		expectAnswers(ctx, cluster.Outside(), udpNodePort(svc, n), w.podNames(ctx, "dns")...)
	})

	It("serves while the API server is away, and follows it when it is back", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 2)
		svc := w.service(ctx, "web", nodePorts)
		servers := w.podNames(ctx, "web")
		expectAnswers(ctx, clients[0].self, http(svc), servers...)
		// No pod can be told to ask meanwhile.
		load := cluster.StartLoad(ctx,
			cluster.Asking{From: clients[0].self, Question: http(svc)[0]},
			cluster.Asking{From: clients[1].self, Question: http(svc)[0]},
			cluster.Asking{From: cluster.Outside(), Question: httpNodePort(svc, clients[0].node)[0]},
		)
		restartAPIServer(ctx)
		Expect(load.Stop()).To(Succeed())
		w.scale(ctx, "web", 3)
		servers = w.podNames(ctx, "web")
		for _, client := range clients[:2] {
			expectAnswers(ctx, client.self, http(svc), servers...)
		}
	})

	It("leaves the rules of others alone", usesNAT, limit, func(ctx SpecContext) {
		n := clients[0].node
		for _, program := range []string{"iptables", "ip6tables"} {
			addForeignRules(ctx, n, program)
		}
		before := foreignRules(ctx, n)
		Expect(before).NotTo(BeEmpty())
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		svc := w.service(ctx, "web", nodePorts)
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "web")...)
		renewAgent(ctx, n)
		Expect(c.CoreV1().Services(w.namespace).Delete(ctx, "web", metav1.DeleteOptions{})).To(Succeed())
		expectNoAnswer(ctx, clients[0].pod, http(svc))
		Expect(foreignRules(ctx, n)).To(Equal(before))
	})

	It("repairs the nat table that somebody flushed", usesNAT, portwayOnly, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 2)
		svc := w.service(ctx, "web", nodePorts)
		client := clients[0]
		servers := w.podNames(ctx, "web")
		expectAnswers(ctx, client.pod, http(svc), servers...)
		for _, program := range programsFor(svc) {
			save, err := c.Exec(ctx, client.node.Name, program+"-save", "-t", "nat")
			Expect(err).NotTo(HaveOccurred())
			_, err = c.Exec(ctx, client.node.Name, program, "--wait", "-t", "nat", "-F")
			Expect(err).NotTo(HaveOccurred())
			// The rest of the node needs what was not ours.
			_, err = c.ExecInput(ctx, client.node.Name, withoutOurs(save), program+"-restore", "--wait", "--noflush")
			Expect(err).NotTo(HaveOccurred())
		}
		// The sync period is 30 s.
		for _, q := range http(svc) {
			q.Tries = triesFor(len(servers))
			Eventually(ctx, func() ([]string, error) {
				got, err := client.pod.Ask(ctx, q)
				return distinct(got), err
			}).WithTimeout(45 * time.Second).Should(ConsistOf(servers))
		}
	})
})

// killAgent kills the proxy of a node and waits until it runs again.
func killAgent(ctx context.Context, n cluster.Node) {
	GinkgoHelper()
	pod, err := c.ProxyPod(ctx, n.Name)
	Expect(err).NotTo(HaveOccurred())
	Expect(c.Kill(ctx, pod)).To(Succeed())
	awaitRestart(ctx, pod)
}

// renewAgent ends the proxy of a node as an update does, and waits for the pod
// that comes in its place.
func renewAgent(ctx context.Context, n cluster.Node) {
	GinkgoHelper()
	old, err := c.ProxyPod(ctx, n.Name)
	Expect(err).NotTo(HaveOccurred())
	Expect(c.CoreV1().Pods(old.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{})).To(Succeed())
	Eventually(ctx, func(g Gomega) {
		now, err := c.ProxyPod(ctx, n.Name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.UID).NotTo(Equal(old.UID))
		g.Expect(cluster.IsReady(now)).To(BeTrue())
	}).WithTimeout(waitForPods).Should(Succeed())
}

func awaitRestart(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		now, err := c.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cluster.Restarts(now)).To(BeNumerically(">", cluster.Restarts(pod)))
		g.Expect(cluster.IsReady(now)).To(BeTrue())
	}).WithTimeout(waitForPods).Should(Succeed())
}

func restartAPIServer(ctx context.Context) {
	GinkgoHelper()
	n := c.Nodes[len(c.Nodes)-1]
	Expect(n.ControlPlane).To(BeTrue())
	pod, err := c.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, "kube-apiserver-"+n.Name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(c.Kill(ctx, pod)).To(Succeed())
	awaitRestart(ctx, pod)
}

const foreign = "E2E-FOREIGN"

// addForeignRules makes chains with rules in both tables that proxies use, and
// jumps to them.
func addForeignRules(ctx context.Context, n cluster.Node, program string) {
	GinkgoHelper()
	for table, hook := range map[string]string{"nat": "PREROUTING", "filter": "FORWARD", "mangle": "PREROUTING"} {
		run := func(ctx context.Context, args ...string) {
			GinkgoHelper()
			_, err := c.Exec(ctx, n.Name, append([]string{program, "--wait", "-t", table}, args...)...)
			Expect(err).NotTo(HaveOccurred())
		}
		jump := []string{hook, "-p", "tcp", "--dport", "9", "-m", "comment", "--comment", "theirs", "-j", foreign}
		run(ctx, "-N", foreign)
		DeferCleanup(func(ctx SpecContext) { run(ctx, "-X", foreign) })
		run(ctx, "-A", foreign, "-m", "comment", "--comment", "theirs", "-j", "RETURN")
		DeferCleanup(func(ctx SpecContext) { run(ctx, "-F", foreign) })
		run(ctx, append([]string{"-A"}, jump...)...)
		DeferCleanup(func(ctx SpecContext) { run(ctx, append([]string{"-D"}, jump...)...) })
	}
}

func foreignRules(ctx context.Context, n cluster.Node) []string {
	GinkgoHelper()
	var lines []string
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		out, err := c.Exec(ctx, n.Name, program)
		Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(out) {
			if strings.Contains(line, foreign) && !strings.HasPrefix(line, ":") { // those have counters
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// withoutOurs is what iptables-save printed, without the rules and chains of
// Services.
func withoutOurs(save string) string {
	var out strings.Builder
	for line := range strings.Lines(save) {
		if !strings.Contains(line, "KUBE-") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// programsFor are the iptables of the families that a Service has.
func programsFor(svc *corev1.Service) []string {
	var programs []string
	for _, ip := range cluster.ClusterIPs(svc) {
		if ip.Is4() {
			programs = append(programs, "iptables")
		} else {
			programs = append(programs, "ip6tables")
		}
	}
	return programs
}

// rulesOn are a node's iptables rules that have a word in them.
func rulesOn(ctx context.Context, n cluster.Node, word string) (string, error) {
	var all strings.Builder
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		out, err := c.Exec(ctx, n.Name, program)
		if err != nil {
			return "", err
		}
		all.WriteString(cluster.RulesAbout(out, word))
	}
	return all.String(), nil
}
