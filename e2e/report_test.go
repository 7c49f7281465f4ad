package e2e_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/portway/portway/e2e/cluster"
)

// What is printed of a spec that failed: the state of its Services, what every
// node knows of them, and what the proxy said.
var _ = JustAfterEach(func(ctx SpecContext) {
	if CurrentSpecReport().Failed() && current != nil {
		current.describe(ctx)
	}
})

// hostOf is the address in an answer to clientip.
func hostOf(answer string) (string, error) {
	ap, err := netip.ParseAddrPort(strings.TrimSpace(answer))
	return ap.Addr().Unmap().String(), err
}

// firstLines cuts s off after n lines.
func firstLines(s string, n int) string {
	lines := slices.Collect(strings.Lines(s))
	return strings.Join(lines[:min(n, len(lines))], "")
}

func (w *world) describe(ctx context.Context) {
	words := []string{w.namespace + "/"}
	svcs, err := c.CoreV1().Services(w.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		GinkgoWriter.Println("Services:", err)
	} else {
		for _, svc := range svcs.Items {
			GinkgoWriter.Printf("Service %s: %v, ports %v\n", svc.Name, svc.Spec.ClusterIPs, svc.Spec.Ports)
			for _, ip := range cluster.ClusterIPs(&svc) {
				words = append(words, ip.String())
			}
		}
	}
	w.describeEndpoints(ctx)
	for _, n := range c.Nodes {
		describeNode(ctx, n, words)
	}
}

func (w *world) describeEndpoints(ctx context.Context) {
	list, err := c.DiscoveryV1().EndpointSlices(w.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		GinkgoWriter.Println("EndpointSlices:", err)
		return
	}
	for _, s := range list.Items {
		for _, ep := range s.Endpoints {
			GinkgoWriter.Printf("Endpoint of %s: %v on %s, ready %v, serving %v, terminating %v\n", s.Name, ep.Addresses,
				ptr.Deref(ep.NodeName, "?"), ptr.Deref(ep.Conditions.Ready, true), ptr.Deref(ep.Conditions.Serving, true), ptr.Deref(ep.Conditions.Terminating, false))
		}
	}
}

// describeNode prints the rules and flows that have one of the words, and the
// end of the proxy's log.
func describeNode(ctx context.Context, n cluster.Node, words []string) {
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		save, err := c.Exec(ctx, n.Name, program)
		if err != nil {
			GinkgoWriter.Println(err)
			continue
		}
		GinkgoWriter.Printf("%s: %s:\n%s\n", n.Name, program, cluster.RulesAbout(save, words...))
	}
	// Absent unless the kernel has IPVS; the addresses in it are hexadecimal.
	if servers, err := c.Exec(ctx, n.Name, "cat", "/proc/net/ip_vs"); err == nil {
		GinkgoWriter.Printf("%s: virtual servers:\n%s\n", n.Name, firstLines(servers, 200))
	}
	for _, ip := range words[1:] {
		flows, err := c.Exec(ctx, n.Name, "conntrack", "-L", "--orig-dst", ip)
		GinkgoWriter.Printf("%s: flows to %s (%v):\n%s", n.Name, ip, err, firstLines(flows, 20))
	}
	pod, err := c.ProxyPod(ctx, n.Name)
	if err != nil {
		GinkgoWriter.Println(err)
		return
	}
	log, err := c.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: ptr.To[int64](30)}).DoRaw(ctx)
	GinkgoWriter.Printf("%s: log of %s (%v):\n%s\n", n.Name, pod.Name, err, log)
}
