package e2e_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/portway/portway/e2e/cluster"
)

// triesFor is how often to ask so that a Service with n endpoints that chooses
// at random leaves one out less than once in ten thousand times.
func triesFor(n int) int { return 12*n + 1 }

// expectAnswers waits until all of the servers answer, and no other.
func expectAnswers(ctx context.Context, from cluster.Place, qs []cluster.Question, servers ...string) {
	GinkgoHelper()
	Expect(qs).NotTo(BeEmpty(), "addresses to ask")
	for _, q := range qs {
		Eventually(ctx, func(g Gomega) {
			_, err := from.Ask(ctx, q) // one that is not answered takes its time
			g.Expect(err).NotTo(HaveOccurred())
			many := q
			many.Tries = triesFor(len(servers))
			got, err := from.Ask(ctx, many)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(distinct(got)).To(ConsistOf(servers), "%s asks %s", from, q.To)
		}).Should(Succeed())
	}
}

// expectRefused waits until a question is refused at once.
func expectRefused(ctx context.Context, from cluster.Place, qs []cluster.Question) {
	GinkgoHelper()
	expectEnd(ctx, from, qs, cluster.ErrRefused)
}

// expectSilence waits until a question is not answered at all.
func expectSilence(ctx context.Context, from cluster.Place, qs []cluster.Question) {
	GinkgoHelper()
	expectEnd(ctx, from, qs, cluster.ErrSilent)
}

// expectNoAnswer waits until a question ends without an answer, in whatever way:
// once an address or port is nobody's, the proxy has no say in how.
func expectNoAnswer(ctx context.Context, from cluster.Place, qs []cluster.Question) {
	GinkgoHelper()
	expectEnd(ctx, from, qs, nil)
}

func expectEnd(ctx context.Context, from cluster.Place, qs []cluster.Question, end error) {
	GinkgoHelper()
	Expect(qs).NotTo(BeEmpty(), "addresses to ask")
	for _, q := range qs {
		Eventually(ctx, func() error {
			_, err := from.Ask(ctx, q)
			return err
		}).Should(ended(end))
	}
}

// ended matches one end, or each of the two for nil.
func ended(end error) OmegaMatcher {
	if end == nil {
		return Or(MatchError(cluster.ErrRefused), MatchError(cluster.ErrSilent))
	}
	return MatchError(end)
}

// load asks a Service from two pods, by its ClusterIP, and from outside, by a
// NodePort, once all of its servers have answered.
func (w *world) load(ctx context.Context, svc *corev1.Service) *cluster.Load {
	GinkgoHelper()
	servers := w.podNames(ctx, svc.Name)
	expectAnswers(ctx, clients[0].pod, http(svc), servers...)
	expectAnswers(ctx, clients[1].pod, http(svc), servers...)
	expectAnswers(ctx, cluster.Outside(), httpNodePort(svc, clients[0].node), servers...)
	return cluster.StartLoad(ctx,
		cluster.Asking{From: clients[0].pod, Question: http(svc)[0]},
		cluster.Asking{From: clients[1].pod, Question: http(svc)[0]},
		cluster.Asking{From: cluster.Outside(), Question: httpNodePort(svc, clients[0].node)[0]},
	)
}

// expectSource waits until the server sees the given address.
func expectSource(ctx context.Context, from cluster.Place, q cluster.Question, source string) {
	GinkgoHelper()
	q.Ask = "clientip"
	Eventually(ctx, func() (string, error) {
		got, err := from.Ask(ctx, q)
		if err != nil {
			return "", err
		}
		return hostOf(got[0])
	}).Should(Equal(source), "%s asks %s", from, q.To)
}
