package e2e_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/portway/portway/e2e/cluster"
)

var _ = Describe("Endpoints", anyFamily, func() {
	It("refuses at once when there are none, and serves again when there are", anyMode, smoke, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 2)
		svc := w.service(ctx, "web", nodePorts)
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "web")...)
		w.scale(ctx, "web", 0)
		for _, from := range everywhere() {
			if from.Name != cluster.Outside().Name {
				expectRefused(ctx, from, http(svc))
			}
			expectRefused(ctx, from, httpNodePort(svc, clients[0].node))
		}
		for _, from := range []cluster.Place{clients[0].pod, clients[1].host} {
			expectRefused(ctx, from, udp(svc))
		}
		w.scale(ctx, "web", 2)
		for _, from := range inside() {
			expectAnswers(ctx, from, http(svc), w.podNames(ctx, "web")...)
		}
		expectAnswers(ctx, cluster.Outside(), httpNodePort(svc, clients[0].node), w.podNames(ctx, "web")...)
	})

	It("sends nothing to an endpoint that has left", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 3)
		svc := w.service(ctx, "web")
		before := w.pods(ctx, "web")
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "web")...)
		// The pod lives on, so only the proxy can keep traffic from it.
		relabel := []byte(`{"metadata":{"labels":{"app":"left"}}}`)
		_, err := c.CoreV1().Pods(w.namespace).Patch(ctx, before[0].Name, types.MergePatchType, relabel, metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		Eventually(ctx, func() []string { return w.podNames(ctx, "web") }).WithTimeout(waitForPods).
			Should(And(HaveLen(3), Not(ContainElement(before[0].Name))))
		after := w.podNames(ctx, "web")
		for _, from := range inside() {
			expectAnswers(ctx, from, http(svc), after...)
		}
	})

	It("loses no request in a rolling update", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 2, func(d *appsv1.DeploymentSpec) {
			d.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(zero), MaxSurge: ptr.To(one)}
			d.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](15)
			// A server must go on while it is taken out of service everywhere.
			d.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
				PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 6}},
			}
		})
		svc := w.service(ctx, "web", nodePorts)
		old := w.podNames(ctx, "web")
		load := w.load(ctx, svc)
		w.editServers(ctx, "web", func(d *appsv1.DeploymentSpec) {
			d.Template.Annotations = map[string]string{"version": "2"}
		})
		w.awaitServers(ctx, "web")
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "web")...)
		Eventually(ctx, func(g Gomega) { // the old ones live on for a while
			list, err := c.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			for _, p := range list.Items {
				g.Expect(old).NotTo(ContainElement(p.Name))
			}
		}).Should(Succeed())
		Expect(load.Stop()).To(Succeed())
	})
})
