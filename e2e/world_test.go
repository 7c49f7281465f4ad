package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/portway/portway/e2e/cluster"
)

// waitForPods is how long pods may take to start or go: that is not what the
// specs are about.
const waitForPods = 2 * time.Minute

// world is a namespace of one spec, with servers and Services in it.
type world struct{ namespace string }

// current is the world of the running spec, for the report of a failure.
var current *world

func newWorld(ctx context.Context) *world {
	GinkgoHelper()
	ns, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	current = &world{ns.Name}
	DeferCleanup(deleteNamespace, ns.Name)
	return current
}

// netexec is a server and client of the tests; it answers with its pod's name,
// or with the address that it sees the client at.
func netexec(httpPort, udpPort int32) corev1.Container {
	return corev1.Container{
		Name:            "netexec",
		Image:           c.Access.Agnhost,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Args:            []string{"netexec", fmt.Sprintf("--http-port=%d", httpPort), fmt.Sprintf("--udp-port=%d", udpPort)},
		Ports:           []corev1.ContainerPort{{Name: "http", ContainerPort: httpPort}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/hostname", Port: intstr.FromInt32(httpPort)}},
			PeriodSeconds:  1,
			TimeoutSeconds: 5, // on a machine that has much to do
		},
	}
}

// servers deploys pods that answer over HTTP and UDP, and waits for them. edit
// may change the Deployment.
func (w *world) servers(ctx context.Context, name string, replicas int32, edit ...func(*appsv1.DeploymentSpec)) {
	GinkgoHelper()
	labels := map[string]string{"app": name}
	server := netexec(8080, 8081)
	server.Ports = append(server.Ports, corev1.ContainerPort{Name: "udp", ContainerPort: 8081, Protocol: corev1.ProtocolUDP})
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: ptr.To[int64](1),
					Containers:                    []corev1.Container{server},
				},
			},
		},
	}
	for _, e := range edit {
		e(&d.Spec)
	}
	_, err := c.AppsV1().Deployments(w.namespace).Create(ctx, d, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	w.awaitServers(ctx, name)
}

// onNode keeps servers on one node.
func onNode(n cluster.Node) func(*appsv1.DeploymentSpec) {
	return func(d *appsv1.DeploymentSpec) {
		d.Template.Spec.NodeName = n.Name
	}
}

// awaitServers waits until all pods of a Deployment are those that it wants.
func (w *world) awaitServers(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		d, err := c.AppsV1().Deployments(w.namespace).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		s := d.Status
		g.Expect(s.ObservedGeneration).To(Equal(d.Generation))
		g.Expect([]int32{s.Replicas, s.UpdatedReplicas, s.AvailableReplicas}).To(HaveEach(*d.Spec.Replicas), "replicas, updated, available")
	}).WithTimeout(waitForPods).Should(Succeed())
}

// replace deletes pods and waits for those that come in their place.
func (w *world) replace(ctx context.Context, name string, old ...string) {
	GinkgoHelper()
	n := len(w.podNames(ctx, name))
	for _, pod := range old {
		Expect(c.CoreV1().Pods(w.namespace).Delete(ctx, pod, metav1.DeleteOptions{})).To(Succeed())
	}
	Eventually(ctx, func() []string { return w.podNames(ctx, name) }).WithTimeout(waitForPods).
		Should(And(HaveLen(n), Not(ContainElement(BeElementOf(old)))))
}

func (w *world) scale(ctx context.Context, name string, replicas int32) {
	GinkgoHelper()
	w.editServers(ctx, name, func(d *appsv1.DeploymentSpec) { d.Replicas = &replicas })
	w.awaitServers(ctx, name)
}

func (w *world) editServers(ctx context.Context, name string, edit func(*appsv1.DeploymentSpec)) {
	GinkgoHelper()
	Eventually(ctx, func() error {
		d, err := c.AppsV1().Deployments(w.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		edit(&d.Spec)
		_, err = c.AppsV1().Deployments(w.namespace).Update(ctx, d, metav1.UpdateOptions{})
		return err // a conflict with a controller is tried again
	}).Should(Succeed())
}

// pods are those of a Deployment that are not going away.
func (w *world) pods(ctx context.Context, name string) []corev1.Pod {
	GinkgoHelper()
	list, err := c.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	Expect(err).NotTo(HaveOccurred())
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func (w *world) podNames(ctx context.Context, name string) []string {
	GinkgoHelper()
	var names []string
	for _, p := range w.pods(ctx, name) {
		names = append(names, p.Name)
	}
	return names
}

// service creates a Service for the servers of the same name: TCP and UDP on
// port 80. edit may change it.
func (w *world) service(ctx context.Context, name string, edit ...func(*corev1.ServiceSpec)) *corev1.Service {
	GinkgoHelper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{"app": name},
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack),
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("http")},
				{Name: "udp", Port: 80, TargetPort: intstr.FromString("udp"), Protocol: corev1.ProtocolUDP},
			},
		},
	}
	for _, e := range edit {
		e(&svc.Spec)
	}
	svc, err := c.CoreV1().Services(w.namespace).Create(ctx, svc, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return svc
}

func (w *world) editService(ctx context.Context, name string, edit func(*corev1.ServiceSpec)) *corev1.Service {
	GinkgoHelper()
	svc, err := c.CoreV1().Services(w.namespace).Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	edit(&svc.Spec)
	svc, err = c.CoreV1().Services(w.namespace).Update(ctx, svc, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return svc
}

func nodePorts(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }

// http and udp are questions to a Service's ClusterIPs, one for each family.
func http(svc *corev1.Service) []cluster.Question {
	return questions(cluster.ClusterIPs(svc), 80, false)
}

func udp(svc *corev1.Service) []cluster.Question { return questions(cluster.ClusterIPs(svc), 80, true) }

// httpNodePort and udpNodePort are questions to NodePorts of a node, one for
// each family that the Service has.
func httpNodePort(svc *corev1.Service, n cluster.Node) []cluster.Question {
	return questions(nodeAddrs(svc, n), uint16(svc.Spec.Ports[0].NodePort), false)
}

func udpNodePort(svc *corev1.Service, n cluster.Node) []cluster.Question {
	return questions(nodeAddrs(svc, n), uint16(svc.Spec.Ports[1].NodePort), true)
}

func nodeAddrs(svc *corev1.Service, n cluster.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range cluster.ClusterIPs(svc) {
		addrs = append(addrs, n.Addr(ip))
	}
	return addrs
}

func questions(addrs []netip.Addr, port uint16, udp bool) []cluster.Question {
	var qs []cluster.Question
	for _, a := range addrs {
		qs = append(qs, cluster.Question{To: netip.AddrPortFrom(a, port), UDP: udp, Ask: "hostname"})
	}
	return qs
}

// distinct sorts answers and drops those that repeat others.
func distinct(answers []string) []string {
	set := make(map[string]bool)
	for _, a := range answers {
		set[a] = true
	}
	return slices.Sorted(maps.Keys(set))
}
