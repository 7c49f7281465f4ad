package ctl

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Kubernetes asks the cluster's API, as the kubeconfig file says; without one
// as kubectl would, and in a pod as its service account.
type Kubernetes struct{ Kubeconfig string }

func (k Kubernetes) client() (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("how to reach the API server is not known, give its kubeconfig or addresses instead of names: %w", err)
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return c, nil
}

// Node returns the addresses of a node.
func (k Kubernetes) Node(ctx context.Context, name string) ([]netip.Addr, error) {
	c, err := k.client()
	if err != nil {
		return nil, err
	}
	n, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, asked("node "+name, err)
	}
	return nodeAddresses(n), nil
}

// Pod returns the addresses of a pod.
func (k Kubernetes) Pod(ctx context.Context, namespace, name string) ([]netip.Addr, error) {
	c, err := k.client()
	if err != nil {
		return nil, err
	}
	p, err := c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, asked("pod "+namespace+"/"+name, err)
	}
	return podAddresses(p), nil
}

func asked(what string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("look up %s: %w; give its address, or a kubeconfig that may look", what, err)
	}
	return fmt.Errorf("look up %s: %w", what, err)
}

func nodeAddresses(n *corev1.Node) []netip.Addr {
	var all []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind {
				all = append(all, ip.Unmap())
			}
		}
	}
	return all
}

func podAddresses(p *corev1.Pod) []netip.Addr {
	var all []netip.Addr
	for _, a := range p.Status.PodIPs {
		if ip, err := netip.ParseAddr(a.IP); err == nil {
			all = append(all, ip.Unmap())
		}
	}
	return all
}
