package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// flagsOf are what an agent must be told to see a state as it is meant.
func flagsOf(s dataplanetest.State) []string {
	flags := []string{"--unallocated-service-ips=ignore"}
	if s.DropUnallocated {
		flags[0] = "--unallocated-service-ips=drop"
	}
	if s.MasqueradeAll {
		flags = append(flags, "--masquerade-all")
	}
	if s.DropInternal {
		flags = append(flags, "--internal-traffic-policy-empty=drop")
	}
	switch s.NodePorts {
	case dataplanetest.NodePortsPrimary:
		flags = append(flags, "--nodeport-addresses=primary")
	case dataplanetest.NodePortsNone:
		flags = append(flags, "--nodeport-addresses=192.0.2.0/24,2001:db8::/32")
	}
	switch s.Detect {
	case dataplanetest.DetectNothing:
		return append(flags, "--detect-local-mode=ClusterCIDR") // of no range
	case dataplanetest.DetectCluster:
		flags = append(flags, fmt.Sprintf("--cluster-cidr=%s,%s", rig.ClusterRange4, rig.ClusterRange6))
	case dataplanetest.DetectInterface:
		flags = append(flags, "--pod-interface-name-prefix=veth")
	case dataplanetest.DetectBridge:
		flags = append(flags, "--pod-bridge-interface="+s.RigOptions().Bridge)
	}
	return append(flags, "--detect-local-mode="+string(s.Detect))
}

// objectsOf are the Services of a state and their slices, as the control plane
// would have them.
func objectsOf(s dataplanetest.State) []runtime.Object {
	var all []runtime.Object
	for _, svc := range s.Services {
		all = append(all, serviceOf(svc))
		for _, ip := range svc.ClusterIPs {
			all = append(all, sliceOf(svc, dataplane.FamilyOf(ip)))
		}
	}
	for i, ip := range s.Ignored {
		others := serviceOf(dataplanetest.Service{Name: fmt.Sprint("others", i), Protocol: dataplane.TCP, Port: 80, ClusterIPs: []netip.Addr{ip}})
		others.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "somebody"}
		all = append(all, others)
	}
	return all
}

// nameOf is the name of a Service: each port of the state becomes one.
func nameOf(svc dataplanetest.Service) string { return strings.ReplaceAll(svc.Name, ":", "-") }

func serviceOf(svc dataplanetest.Service) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "rig", Name: nameOf(svc)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: svc.ClusterIPs[0].String(),
			ClusterIPs: texts(svc.ClusterIPs), ExternalIPs: texts(svc.ExternalIPs), LoadBalancerSourceRanges: texts(svc.SourceRanges),
			Ports: []corev1.ServicePort{{Name: "p", Port: int32(svc.Port), NodePort: int32(svc.NodePort), Protocol: corev1.Protocol(svc.Protocol.String())}},
		},
	}
	switch {
	case svc.LoadBalancers != nil:
		o.Spec.Type = corev1.ServiceTypeLoadBalancer
	case svc.NodePort != 0:
		o.Spec.Type = corev1.ServiceTypeNodePort
	}
	for _, ip := range svc.LoadBalancers {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip.String()})
	}
	if svc.Internal == dataplane.Local {
		o.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if svc.External == dataplane.Local {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if svc.Affinity > 0 {
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(svc.Affinity.Seconds()))}}
	}
	return o
}

func texts[T fmt.Stringer](all []T) []string {
	var words []string
	for _, one := range all {
		words = append(words, one.String())
	}
	return words
}

func sliceOf(svc dataplanetest.Service, f dataplane.Family) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "rig", Name: nameOf(svc) + "-" + strings.ToLower(f.String()),
			Labels: map[string]string{discoveryv1.LabelServiceName: nameOf(svc)},
		},
		AddressType: discoveryv1.AddressType(f.String()),
		Ports: []discoveryv1.EndpointPort{{
			Name: new("p"), Port: new(int32(svc.TargetPort)), Protocol: new(corev1.Protocol(svc.Protocol.String())),
		}},
	}
	for _, b := range svc.Endpoints {
		v4, v6, err := rig.Addrs(b.Host)
		if err != nil {
			panic(err) // generated states name hosts of the rig
		}
		addr, node := v4, "node"
		if f == dataplane.IPv6 {
			addr = v6
		}
		if slices.Contains([]string{"remote", "node2"}, b.Host) {
			node = "node2"
		}
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &node})
	}
	return o
}

// ranges are those of the ClusterIPs.
func ranges() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{rig.ServiceRange4.String(), rig.ServiceRange6.String()}},
	}
}
