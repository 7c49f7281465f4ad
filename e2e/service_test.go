package e2e_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/e2e/cluster"
)

var _ = Describe("Changes of a Service", anyFamily, func() {
	It("stops with the Service, and starts with the next one of the same address", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		svc := w.service(ctx, "web", nodePorts)
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "web")...)
		for range 2 {
			Expect(c.CoreV1().Services(w.namespace).Delete(ctx, "web", metav1.DeleteOptions{})).To(Succeed())
			for _, from := range inside() {
				expectNoAnswer(ctx, from, http(svc))
			}
			expectNoAnswer(ctx, cluster.Outside(), httpNodePort(svc, clients[0].node))
			svc = w.service(ctx, "web", nodePorts, func(s *corev1.ServiceSpec) {
				s.ClusterIP, s.ClusterIPs = svc.Spec.ClusterIP, svc.Spec.ClusterIPs
			})
			for _, from := range inside() {
				expectAnswers(ctx, from, http(svc), w.podNames(ctx, "web")...)
			}
			expectAnswers(ctx, cluster.Outside(), httpNodePort(svc, clients[0].node), w.podNames(ctx, "web")...)
		}
	})

	It("follows its port, target port and NodePort", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		w.servers(ctx, "other", 1)
		svc := w.service(ctx, "web", nodePorts)
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "web")...)
		old := httpNodePort(svc, clients[0].node)

		svc = w.editService(ctx, "web", func(s *corev1.ServiceSpec) {
			s.Ports[0].Port, s.Ports[0].NodePort = 8888, 0
			s.Selector = map[string]string{"app": "other"}
		})
		expectAnswers(ctx, clients[0].pod, questions(cluster.ClusterIPs(svc), 8888, false), w.podNames(ctx, "other")...)
		for _, from := range inside() {
			expectNoAnswer(ctx, from, http(svc))
		}
		if moved := httpNodePort(svc, clients[0].node); moved[0] != old[0] {
			expectAnswers(ctx, cluster.Outside(), moved, w.podNames(ctx, "other")...)
			expectNoAnswer(ctx, cluster.Outside(), old)
		}
	})

	It("refuses the other ports of a ClusterIP at once", anyMode, portwayOnly, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		svc := w.service(ctx, "web")
		for _, from := range inside() {
			expectAnswers(ctx, from, http(svc), w.podNames(ctx, "web")...)
			expectRefused(ctx, from, questions(cluster.ClusterIPs(svc), 81, false))
		}
	})

	It("becomes a NodePort Service, and none again", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 1)
		w.service(ctx, "web")
		svc := w.editService(ctx, "web", nodePorts)
		asked := httpNodePort(svc, clients[1].node)
		expectAnswers(ctx, cluster.Outside(), asked, w.podNames(ctx, "web")...)
		w.editService(ctx, "web", func(s *corev1.ServiceSpec) {
			s.Type = corev1.ServiceTypeClusterIP
			for i := range s.Ports {
				s.Ports[i].NodePort = 0
			}
		})
		expectNoAnswer(ctx, cluster.Outside(), asked)
	})
})
