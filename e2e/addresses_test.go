package e2e_test

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/portway/portway/e2e/cluster"
)

// Addresses of ranges that are meant for examples (RFC 5737, RFC 3849); nobody
// has them. Each spec has its own, so that they can run at the same time.
var externalIPs = []string{"198.51.100.31", "2001:db8::31"}

var zero, one = intstr.FromInt32(0), intstr.FromInt32(1)

// externalAddrs are the externalIPs of the families that a Service has, each by
// itself.
func externalAddrs(svc *corev1.Service) [][]netip.Addr {
	var all [][]netip.Addr
	for _, s := range svc.Spec.ExternalIPs {
		a := netip.MustParseAddr(s)
		for _, ip := range cluster.ClusterIPs(svc) {
			if ip.Is4() == a.Is4() {
				all = append(all, []netip.Addr{a})
			}
		}
	}
	return all
}

// balancerAddrs are addresses for a load balancer of the Service, one for each
// family that it has. They are made of its ClusterIPs, so they are unique.
func balancerAddrs(svc *corev1.Service) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range cluster.ClusterIPs(svc) {
		if ip.Is4() {
			b := ip.As4()
			addrs = append(addrs, netip.AddrFrom4([4]byte{198, 18, b[2], b[3]}))
			continue
		}
		b := ip.As16()
		prefix := netip.MustParseAddr("2001:db8:1::").As16()
		copy(b[:8], prefix[:8])
		addrs = append(addrs, netip.AddrFrom16(b))
	}
	return addrs
}

// slices makes EndpointSlices by hand, for the pods of several Deployments.
func (w *world) slices(ctx context.Context, svc *corev1.Service, deployments ...string) {
	GinkgoHelper()
	for _, ip := range cluster.ClusterIPs(svc) {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName: svc.Name + "-",
				Labels:       map[string]string{discoveryv1.LabelServiceName: svc.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)},
				{Name: ptr.To("udp"), Port: ptr.To[int32](8081), Protocol: ptr.To(corev1.ProtocolUDP)},
			},
		}
		if ip.Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		for _, d := range deployments {
			for _, p := range w.pods(ctx, d) {
				addr := cluster.Node{Addrs: cluster.PodAddrs(&p)}.Addr(ip)
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &p.Spec.NodeName})
			}
		}
		_, err := c.DiscoveryV1().EndpointSlices(w.namespace).Create(ctx, s, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
}
