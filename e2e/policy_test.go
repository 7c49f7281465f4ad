package e2e_test

import (
	"context"
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/portway/portway/e2e/cluster"
)

func externalLocal(s *corev1.ServiceSpec) {
	s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *corev1.ServiceSpec) {
	s.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
}

// balancer gives a Service the addresses of a load balancer that does not exist.
func (w *world) balancer(ctx context.Context, svc *corev1.Service, addrs ...netip.Addr) {
	GinkgoHelper()
	for _, a := range addrs {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	_, err := c.CoreV1().Services(w.namespace).UpdateStatus(ctx, svc, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
}

// bothWays are the first two nodes in each order: only one of them may have the
// mode that is tested.
func bothWays() [][2]client {
	return [][2]client{{clients[0], clients[1]}, {clients[1], clients[0]}}
}

var _ = Describe("Traffic policy", anyFamily, func() {
	It("internal, Local: serves from the client's own node", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		here, there := clients[0], clients[1]
		w.servers(ctx, "near", 1, onNode(here.node))
		w.servers(ctx, "far", 1, onNode(there.node))
		svc := w.service(ctx, "both", internalLocal, func(s *corev1.ServiceSpec) { s.Selector = nil })
		w.slices(ctx, svc, "near", "far")
		expectAnswers(ctx, here.pod, http(svc), w.podNames(ctx, "near")...)
		expectAnswers(ctx, there.pod, http(svc), w.podNames(ctx, "far")...)
		expectAnswers(ctx, here.self, http(svc), w.podNames(ctx, "near")...)
		expectAnswers(ctx, there.host, http(svc), w.podNames(ctx, "far")...)
	})

	It("internal, Local: refuses on a node without a server", anyMode, portwayOnly, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		here, there := clients[1], clients[0]
		w.servers(ctx, "web", 1, onNode(here.node))
		svc := w.service(ctx, "web", internalLocal)
		expectAnswers(ctx, here.pod, http(svc), w.podNames(ctx, "web")...)
		for _, from := range []cluster.Place{there.pod, there.host, there.self} {
			expectRefused(ctx, from, http(svc))
		}
	})

	It("external, Local: keeps the source, and is silent on a node without a server", keepsSource, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		for i, pair := range bothWays() {
			here, there := pair[0], pair[1]
			name := fmt.Sprintf("web-%d", i)
			w.servers(ctx, name, 1, onNode(here.node))
			svc := w.service(ctx, name, nodePorts, externalLocal)
			for _, q := range httpNodePort(svc, here.node) {
				source, err := cluster.OutsideAddr(ctx, here.node, q.To.Addr())
				Expect(err).NotTo(HaveOccurred())
				expectSource(ctx, cluster.Outside(), q, source.String())
			}
			expectSilence(ctx, cluster.Outside(), httpNodePort(svc, there.node))
			// What comes from that node itself is not limited to what is local.
			for _, from := range []cluster.Place{there.pod, there.host, there.self} {
				expectAnswers(ctx, from, httpNodePort(svc, there.node), w.podNames(ctx, name)...)
			}
		}
	})

	It("external, Local: tells load balancers where the servers are", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		here, there := clients[0], clients[1]
		w.servers(ctx, "web", 1, onNode(here.node))
		svc := w.service(ctx, "web", externalLocal, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer })
		check := func(n cluster.Node) []cluster.Question {
			qs := questions(nodeAddrs(svc, n), uint16(svc.Spec.HealthCheckNodePort), false)
			for i := range qs {
				qs[i].Ask = "any/path"
			}
			return qs
		}
		expectHealth := func(n cluster.Node, want string) {
			GinkgoHelper()
			for _, q := range check(n) {
				Eventually(ctx, func() string { return fmt.Sprint(cluster.Outside().Ask(ctx, q)) }).
					Should(ContainSubstring(want), "health check of %s", n.Name)
			}
		}
		expectHealth(here.node, `"localEndpoints":1`)
		expectHealth(there.node, "503")
		w.scale(ctx, "web", 0)
		expectHealth(here.node, "503")
		Expect(c.CoreV1().Services(w.namespace).Delete(ctx, "web", metav1.DeleteOptions{})).To(Succeed())
		expectRefused(ctx, cluster.Outside(), check(here.node))
	})

	It("external, Local: serves the load balancer's address to pods, from any node", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1, onNode(clients[0].node))
		svc := w.service(ctx, "web", externalLocal, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer })
		addrs := balancerAddrs(svc)
		w.balancer(ctx, svc, addrs...)
		for _, client := range clients {
			expectAnswers(ctx, client.pod, questions(addrs, 80, false), w.podNames(ctx, "web")...)
			expectAnswers(ctx, client.host, questions(addrs, 80, false), w.podNames(ctx, "web")...)
		}
	})

	It("source ranges: nobody else may use the load balancer's address", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		for i, pair := range bothWays() {
			allowed, other := pair[0], pair[1]
			svc := w.service(ctx, fmt.Sprintf("web-%d", i), func(s *corev1.ServiceSpec) {
				s.Type, s.Selector = corev1.ServiceTypeLoadBalancer, map[string]string{"app": "web"}
				for _, a := range allowed.pod.Addrs {
					s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, netip.PrefixFrom(a, a.BitLen()).String())
				}
			})
			addrs := balancerAddrs(svc)
			w.balancer(ctx, svc, addrs...)
			expectAnswers(ctx, allowed.pod, questions(addrs, 80, false), w.podNames(ctx, "web")...)
			expectSilence(ctx, other.pod, questions(addrs, 80, false))
			expectAnswers(ctx, other.pod, http(svc), w.podNames(ctx, "web")...)
		}
	})
})
