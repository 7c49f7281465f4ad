package load

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/bench/internal/network"
	"github.com/portway/portway/bench/internal/probe"
)

const (
	backgroundNamespace = "scale"
	specialNamespace    = "measured"

	manager = "portway-bench"
	managed = discoveryv1.LabelManagedBy + "=" + manager
)

// Service is one that the benchmark makes.
type Service struct {
	Namespace, Name string
	Address         netip.Addr // its ClusterIP
	ports           []port
	endpoints       int
}

type port struct {
	name           string
	number, target int
}

// key names the Service.
func (s Service) key() string { return s.Namespace + "/" + s.Name }

// Port is the frontend of the Service's first port.
func (s Service) Port() netip.AddrPort {
	return netip.AddrPortFrom(s.Address, uint16(s.ports[0].number))
}

var web = []port{{"http", 80, probe.Arrive}}

// Background is one of the Services that there are many of.
func Background(i int) Service {
	return Service{
		Namespace: backgroundNamespace, Name: fmt.Sprintf("svc-%05d", i),
		Address: after(netip.MustParseAddr("10.100.0.0"), i+1), ports: web,
	}
}

// backgroundEndpoints are the endpoints that a background Service has at first.
func backgroundEndpoints(i, count int) []netip.Addr {
	addrs := make([]netip.Addr, count)
	for j := range addrs {
		addrs[j] = after(network.Endpoints.Addr(), i*count+j+1)
	}
	return addrs
}

// Canaries is how many Services there are with a single endpoint, so that the
// first connection after a change says whether it is in the kernel.
const Canaries = 10

// Canary is one of them.
func Canary(i int) Service {
	return Service{
		Namespace: specialNamespace, Name: fmt.Sprintf("canary-%d", i),
		Address: after(netip.MustParseAddr("10.99.0.0"), i+1), ports: web, endpoints: 1,
	}
}

// Passing is a Service that is made and deleted again.
func Passing(i int) Service {
	return Service{
		Namespace: specialNamespace, Name: fmt.Sprintf("passing-%03d", i),
		Address: after(netip.MustParseAddr("10.99.1.0"), i+1), ports: web, endpoints: 1,
	}
}

// RollSize is how many endpoints the Service has that is rolled over.
const RollSize = 100

// Roll is that Service.
func Roll() Service {
	return Service{Namespace: specialNamespace, Name: "roll", Address: netip.MustParseAddr("10.99.2.1"), ports: web, endpoints: RollSize}
}

// Flow is a Service whose ports are an echo, and a drain for throughput.
func Flow() Service {
	return Service{
		Namespace: specialNamespace, Name: "flow", Address: netip.MustParseAddr("10.99.3.1"), endpoints: 5,
		ports: []port{{"echo", probe.Echo, probe.Echo}, {"drain", probe.Drain, probe.Drain}},
	}
}

// DNS is the cluster's DNS, as far as a proxy can see.
func DNS() Service {
	return Service{
		Namespace: "kube-system", Name: "kube-dns", Address: netip.MustParseAddr("10.96.0.10"), endpoints: 1,
		ports: []port{{"dns-tcp", 53, probe.Arrive}},
	}
}

func (s Service) object() *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: s.Address.String()},
	}
	for _, p := range s.ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: p.name, Port: int32(p.number), TargetPort: target(p.target)})
	}
	return o
}

func (s Service) slice(endpoints []netip.Addr) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: manager},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range s.ports {
		number, protocol := int32(p.target), corev1.ProtocolTCP
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.name, Port: &number, Protocol: &protocol})
	}
	ready, elsewhere := true, "another-node"
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &elsewhere,
		})
	}
	return slice
}

// after is the nth address after another.
func after(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}
