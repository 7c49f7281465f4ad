package e2e_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/portway/portway/e2e/cluster"
)

// client is a node and the places on it from which Services are used.
type client struct {
	node cluster.Node
	// shell is a pod to run programs in; pod is the place that it is.
	shell *corev1.Pod
	pod   cluster.Place
	// host is a hostNetwork pod, self the node without any pod.
	host, self cluster.Place
}

// everywhere are all places on the first two workers, and outside.
func everywhere() []cluster.Place {
	a, b := clients[0], clients[1]
	return []cluster.Place{a.pod, b.pod, a.host, b.self, cluster.Outside()}
}

// inside are all places on two nodes.
func inside() []cluster.Place { return everywhere()[:4] }

const (
	clientNamespace = "portway-e2e"
	podPort         = 8080
	hostPort        = 20080 // on the nodes, out of the way of everything else
)

// deployClients puts both kinds of client on every node.
func deployClients(ctx context.Context) {
	ensureNamespace(ctx, clientNamespace)
	for _, ds := range []*appsv1.DaemonSet{clientSet("client", podPort), clientSet("host", hostPort)} {
		ds.Spec.Template.Spec.HostNetwork = ds.Name == "host"
		_, err := c.AppsV1().DaemonSets(clientNamespace).Create(ctx, ds, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			Expect(err).NotTo(HaveOccurred())
		}
	}
	for _, name := range []string{"client", "host"} {
		Eventually(ctx, func(g Gomega) {
			ds, err := c.AppsV1().DaemonSets(clientNamespace).Get(ctx, name, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ds.Status.NumberReady).To(BeEquivalentTo(len(c.Nodes)), "DaemonSet %s on every node", name)
		}).WithTimeout(waitForPods).Should(Succeed())
	}
}

func clientSet(name string, port int32) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					TerminationGracePeriodSeconds: ptr.To[int64](0),
					Containers:                    []corev1.Container{netexec(port, -1)},
				},
			},
		},
	}
}

// findClients returns those on each node, in the order of the nodes.
func findClients(ctx context.Context) []client {
	list, err := c.CoreV1().Pods(clientNamespace).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	all := make([]client, len(c.Nodes))
	for i, n := range c.Nodes {
		all[i] = client{node: n, self: c.FromNode(n)}
		for _, pod := range list.Items {
			switch {
			case pod.Spec.NodeName != n.Name || pod.DeletionTimestamp != nil:
			case pod.Spec.HostNetwork:
				all[i].host = c.FromPod(&pod)
			default:
				all[i].shell, all[i].pod = &pod, c.FromPod(&pod)
			}
		}
		Expect(all[i].shell).NotTo(BeNil(), "client on %s", n.Name)
	}
	return all
}

// ensureNamespace makes a namespace. One that an earlier run is still deleting
// must go first; one that it left is good.
func ensureNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			g.Expect(err).NotTo(HaveOccurred())
			return
		}
		ns, err := c.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(ns.DeletionTimestamp).To(BeNil(), "namespace %s is being deleted", name)
	}).Should(Succeed())
}

func deleteNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(c.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
}
