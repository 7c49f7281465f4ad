package e2e_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/portway/portway/e2e/cluster"
)

// anything asks for the first page of any server; netexec insists on a path.
const anything = "?"

var _ = Describe("Reaching a Service", anyFamily, func() {
	// The sample that the lab deploys: three pods of nginx behind Service myapp.
	It("serves the sample to pods, nodes and hostNetwork pods by address, to pods by name, and outside by NodePort", anyMode, smoke, limit, func(ctx SpecContext) {
		svc, err := c.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "myapp", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred(), "the lab's sample")
		welcome := ContainElement(ContainSubstring("Welcome to nginx"))
		for _, q := range http(svc) {
			q.Ask = anything
			for _, from := range inside() {
				Eventually(ctx, from.Ask).WithArguments(q).Should(welcome, "%s", from)
			}
		}
		byName := cluster.Question{Host: "myapp.default.svc.cluster.local", To: http(svc)[0].To, Ask: anything}
		Eventually(ctx, clients[0].pod.Ask).WithArguments(byName).Should(welcome)

		exposed := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "myapp-e2e-"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, Selector: svc.Spec.Selector,
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(80)}},
			},
		}
		exposed, err = c.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, exposed, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.CoreV1().Services(metav1.NamespaceDefault).Delete, exposed.Name, metav1.DeleteOptions{})
		for _, n := range c.Nodes {
			for _, q := range httpNodePort(exposed, n) {
				q.Ask = anything
				Eventually(ctx, cluster.Outside().Ask).WithArguments(q).Should(welcome, "NodePort of %s", n.Name)
			}
		}
	})

	It("spreads connections over all endpoints, from wherever they come", anyMode, smoke, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		svc := w.service(ctx, "web", nodePorts)
		w.servers(ctx, "web", 3)
		servers := w.podNames(ctx, "web")
		for _, from := range inside() {
			expectAnswers(ctx, from, http(svc), servers...)
		}
		for _, n := range c.Nodes {
			expectAnswers(ctx, cluster.Outside(), httpNodePort(svc, n), servers...)
		}
	})

	It("answers on a NodePort of every node, for pods and nodes too", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		svc := w.service(ctx, "web", nodePorts)
		for _, n := range c.Nodes {
			for _, from := range inside() {
				expectAnswers(ctx, from, httpNodePort(svc, n), w.podNames(ctx, "web")...)
			}
		}
	})

	It("keeps TCP and UDP on the same port apart", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "tcp", 1)
		w.servers(ctx, "udp", 1)
		// One address, two Services: each has one of the protocols.
		first := w.service(ctx, "tcp", func(s *corev1.ServiceSpec) { s.Ports = s.Ports[:1]; s.ExternalIPs = externalIPs })
		second := w.service(ctx, "udp", func(s *corev1.ServiceSpec) { s.Ports = s.Ports[1:]; s.ExternalIPs = externalIPs })
		for _, from := range []cluster.Place{clients[0].pod, clients[1].host} {
			expectAnswers(ctx, from, http(first), w.podNames(ctx, "tcp")...)
			expectAnswers(ctx, from, udp(second), w.podNames(ctx, "udp")...)
			for _, ip := range externalAddrs(first) {
				expectAnswers(ctx, from, questions(ip, 80, false), w.podNames(ctx, "tcp")...)
				expectAnswers(ctx, from, questions(ip, 80, true), w.podNames(ctx, "udp")...)
			}
		}
	})

	It("lets a pod reach itself", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1, onNode(clients[0].node))
		svc := w.service(ctx, "web", nodePorts)
		self := w.pods(ctx, "web")[0]
		from := c.FromPod(&self)
		expectAnswers(ctx, from, http(svc), self.Name)
		expectAnswers(ctx, from, udp(svc), self.Name)
		for _, n := range c.Nodes {
			expectAnswers(ctx, from, httpNodePort(svc, n), self.Name)
		}
	})

	It("shows servers the address of the pod that asks", keepsSource, smoke, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 2)
		svc := w.service(ctx, "web")
		for _, client := range clients[:2] {
			for _, q := range append(http(svc), udp(svc)...) {
				expectSource(ctx, client.pod, q, client.pod.Addr(q.To.Addr()).String())
			}
		}
	})

	It("has no part in a headless Service", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 2)
		w.service(ctx, "web", headless)
		servers := w.podNames(ctx, "web")
		for _, pod := range w.pods(ctx, "web") {
			direct := questions(cluster.PodAddrs(&pod), 8080, false)
			expectAnswers(ctx, clients[0].pod, direct, pod.Name)
			name := cluster.Question{Host: "web." + w.namespace + ".svc.cluster.local", To: direct[0].To, Ask: "hostname"}
			Eventually(ctx, clients[0].pod.Ask).WithArguments(name).Should(ContainElement(BeElementOf(servers)))
		}
	})

	It("makes no rule for a headless Service", Label("iptables"), limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		w.service(ctx, "web", headless)
		w.service(ctx, "later", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "web"} })
		Eventually(ctx, rulesOn).WithArguments(clients[0].node, w.namespace+"/later").ShouldNot(BeEmpty())
		Expect(rulesOn(ctx, clients[0].node, w.namespace+"/web")).To(BeEmpty())
	})
})

func headless(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone }
