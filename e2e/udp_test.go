package e2e_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/portway/portway/e2e/cluster"
)

// A client that keeps its socket, or its port, keeps its flow: it reaches what
// the first packet reached until the proxy cleans up.
var _ = Describe("UDP", anyFamily, func() {
	It("follows a server that is replaced, for a client outside that keeps its socket", anyMode, smoke, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		w.servers(ctx, "dns", 1)
		svc := w.service(ctx, "dns", nodePorts)
		for _, q := range udpNodePort(svc, clients[0].node) {
			socket, err := cluster.OpenUDP(ctx, q.To.String())
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(socket.Close)
			for range 2 {
				Eventually(ctx, func() (string, error) { return socket.Ask(q.Ask) }).Should(BeElementOf(w.podNames(ctx, "dns")))
				w.replace(ctx, "dns", w.podNames(ctx, "dns")...)
			}
			Eventually(ctx, func() (string, error) { return socket.Ask(q.Ask) }).Should(BeElementOf(w.podNames(ctx, "dns")))
		}
	})

	It("reaches the first server, for a pod that asked from the same port before there was one", anyMode, limit, func(ctx SpecContext) {
		w := newWorld(ctx)
		svc := w.service(ctx, "dns")
		asks := func(q cluster.Question) string {
			out, err := c.Shell(ctx, clients[0].shell, fmt.Sprintf("echo hostname | nc -u -w 1 -p 31999 %s %d", q.To.Addr(), q.To.Port()))
			return fmt.Sprint(strings.TrimSpace(out), err)
		}
		for _, q := range udp(svc) {
			Expect(asks(q)).NotTo(ContainSubstring("dns-"))
		}
		w.servers(ctx, "dns", 1)
		for _, q := range udp(svc) {
			Eventually(ctx, asks).WithArguments(q).Should(ContainSubstring(w.podNames(ctx, "dns")[0]))
		}
		w.scale(ctx, "dns", 0)
		for _, q := range udp(svc) {
			Eventually(ctx, asks).WithArguments(q).ShouldNot(ContainSubstring("dns-"))
		}
		w.scale(ctx, "dns", 1)
		for _, q := range udp(svc) {
			Eventually(ctx, asks).WithArguments(q).Should(ContainSubstring(w.podNames(ctx, "dns")[0]))
		}
	})
})
