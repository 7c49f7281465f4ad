package e2e_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/portway/portway/e2e/cluster"
)

func clientIP(timeout time.Duration) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(timeout.Seconds()))},
		}
	}
}

var _ = Describe("Session affinity", anyFamily, func() {
	It("binds a client to one server, until that leaves", anyMode, smoke, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 3)
		svc := w.service(ctx, "web", clientIP(time.Hour))
		for _, client := range clients[:2] {
			for _, q := range http(svc) {
				bound := boundTo(ctx, client.pod, q, w.podNames(ctx, "web"))
				w.replace(ctx, "web", bound)
				boundTo(ctx, client.pod, q, w.podNames(ctx, "web"))
			}
		}
	})

	It("forgets a client that was away for longer than the timeout", endsBindings, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 3)
		const timeout = 2 * time.Second
		svc := w.service(ctx, "web", clientIP(timeout))
		for _, q := range http(svc) {
			bound := boundTo(ctx, clients[0].pod, q, w.podNames(ctx, "web"))
			// Each question starts a new binding and restarts the clock; the
			// next one comes after that has run out.
			Eventually(ctx, func() ([]string, error) { return clients[0].pod.Ask(ctx, q) }).
				WithPolling(timeout + time.Second).WithTimeout(time.Minute).
				ShouldNot(ContainElement(bound))
		}
	})

	It("ends with the wish for it", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "web", 3)
		svc := w.service(ctx, "web", clientIP(time.Hour))
		boundTo(ctx, clients[0].pod, http(svc)[0], w.podNames(ctx, "web"))
		w.editService(ctx, "web", func(s *corev1.ServiceSpec) {
			s.SessionAffinity, s.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		})
		expectAnswers(ctx, clients[0].pod, http(svc), w.podNames(ctx, "web")...)
	})
})

// boundTo waits until a place is served by one of the servers alone, and returns
// its name.
func boundTo(ctx SpecContext, from cluster.Place, q cluster.Question, servers []string) (bound string) {
	GinkgoHelper()
	q.Tries = triesFor(len(servers))
	Eventually(ctx, func(g Gomega) {
		got, err := from.Ask(ctx, q)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(distinct(got)).To(HaveLen(1), fmt.Sprintf("servers of %s", from))
		bound = got[0]
		g.Expect(servers).To(ContainElement(bound))
	}).Should(Succeed())
	return bound
}
