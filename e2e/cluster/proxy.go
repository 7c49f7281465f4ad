package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Proxy is what makes Services in the cluster.
type Proxy struct {
	Name   string // portway or kube-proxy
	Mode   string
	Family string // ipv4, ipv6 or dual
}

// Portway is the name of our proxy's DaemonSet.
const Portway = "portway"

// proxySelectors find the pods of the proxies that we know.
var proxySelectors = map[string]string{
	Portway:      "app.kubernetes.io/name=portway",
	"kube-proxy": "k8s-app=kube-proxy",
}

func (c *Cluster) findProxy(ctx context.Context) (Proxy, error) {
	p := Proxy{Family: c.family()}
	for _, name := range []string{Portway, "kube-proxy"} {
		_, err := c.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			continue
		}
		p.Name = name
		mode, err := c.Exec(ctx, c.Nodes[0].Name, "curl", "--silent", "--show-error", "http://localhost:10249/proxyMode")
		if err != nil {
			return p, fmt.Errorf("ask %s for its mode: %w", name, err)
		}
		p.Mode = strings.TrimSpace(mode)
		return p, nil
	}
	return p, fmt.Errorf("namespace %s has neither DaemonSet %s nor kube-proxy", metav1.NamespaceSystem, Portway)
}

func (c *Cluster) family() string {
	addrs := c.Nodes[0].Addrs
	switch {
	case len(addrs) > 1:
		return "dual"
	case addrs[0].Is4():
		return "ipv4"
	}
	return "ipv6"
}

// ProxyPod is the proxy's pod on a node.
func (c *Cluster) ProxyPod(ctx context.Context, node string) (*corev1.Pod, error) {
	return c.podOn(ctx, metav1.NamespaceSystem, proxySelectors[c.Proxy.Name], node)
}

func (c *Cluster) podOn(ctx context.Context, namespace, selector, node string) (*corev1.Pod, error) {
	list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: selector, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("pods %s on %s: %w", selector, node, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no pod %s on %s", selector, node)
	}
	return &list.Items[0], nil
}

// Kill ends the first container of a pod without a warning.
func (c *Cluster) Kill(ctx context.Context, pod *corev1.Pod) error {
	if len(pod.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("pod %s has no containers yet", pod.Name)
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	pid, err := c.Exec(ctx, pod.Spec.NodeName, "crictl", "inspect", "--output=go-template", "--template={{.info.pid}}", id)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, pod.Spec.NodeName, "kill", "-KILL", strings.TrimSpace(pid))
	return err
}

// Restarts is how often the first container of a pod was started again.
func Restarts(pod *corev1.Pod) int32 {
	if len(pod.Status.ContainerStatuses) == 0 {
		return 0
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}

// IsReady tells whether a pod is ready.
func IsReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// PodAddrs are the addresses of a pod.
func PodAddrs(pod *corev1.Pod) []netip.Addr { return parseAll(podIPs(pod)) }

func podIPs(pod *corev1.Pod) []string {
	ips := make([]string, len(pod.Status.PodIPs))
	for i, ip := range pod.Status.PodIPs {
		ips[i] = ip.IP
	}
	return ips
}

// ClusterIPs are the addresses of a Service, none if it is headless.
func ClusterIPs(svc *corev1.Service) []netip.Addr { return parseAll(svc.Spec.ClusterIPs) }

// parseAll leaves out what is no address, such as the word None.
func parseAll(ss []string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range ss {
		if a, err := netip.ParseAddr(s); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
