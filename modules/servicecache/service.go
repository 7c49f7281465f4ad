package servicecache

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/portway/portway/modules/dataplane"
)

const (
	proxyNameLabel    = "service.kubernetes.io/service-proxy-name"
	defaultAffinity   = 10800 * time.Second
	maxAffinity       = 86400 * time.Second
	dnsLabel, dnsName = "k8s-app", "kube-dns"
)

// service is what the cache keeps of a Service. It is immutable.
type service struct {
	name    dataplane.ServiceName
	object  ObjectRef
	created int64 // seconds
	// ignored Services are headless, external names or another proxy's.
	ignored    bool
	clusterIPs byFamily[netip.Addr]
	// All addresses are of families in which there is a ClusterIP, sorted and
	// without duplicates; one that is in both lists is in the first only.
	lbIPs, externalIPs []netip.Addr
	ports              []servicePort
	// sources limits the LB IPs; nil is everybody.
	sources       *byFamily[[]netip.Prefix]
	internalLocal bool
	externalLocal bool
	healthPort    uint16
	affinity      time.Duration
	scheduler     string
	priority      dataplane.Priority
	problems      []Problem
}

type servicePort struct {
	name     string
	protocol dataplane.Protocol
	port     uint16
	nodePort uint16
}

// families lists those in which the Service exists.
func (s *service) families() []dataplane.Family {
	fs := dataplane.Families()
	switch has4, has6 := s.clusterIPs.v4.IsValid(), s.clusterIPs.v6.IsValid(); {
	case has4 && has6:
		return fs
	case has4:
		return fs[:1]
	case has6:
		return fs[1:]
	}
	return nil
}

// service keeps of an object what matters.
func (c *settings) service(o *corev1.Service) *service {
	s := &service{
		name:    dataplane.ServiceName{Namespace: o.Namespace, Name: o.Name},
		object:  ObjectRef{"Service", "v1", o.Namespace, o.Name, o.UID},
		created: o.CreationTimestamp.Unix(),
	}
	p := &problems{object: s.object}
	s.readClusterIPs(o, p)
	if c.ignores(o) {
		s.ignored = true
		return s
	}
	s.problems = p.list
	if s.ignored = len(s.families()) == 0; s.ignored {
		return s
	}
	s.readPorts(o, p)
	c.readExternal(s, o, p)
	s.readSources(o, p)
	s.internalLocal = o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	s.externalLocal = o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && hasExternalPolicy(o)
	if n := o.Spec.HealthCheckNodePort; s.externalLocal && isPort(n) {
		s.healthPort = uint16(n)
	}
	s.affinity = affinity(&o.Spec)
	s.scheduler = strings.TrimSpace(o.Annotations[SchedulerAnnotation])
	s.priority = priority(o)
	s.problems = p.list
	return s
}

func (c *settings) ignores(o *corev1.Service) bool {
	label, labelled := o.Labels[proxyNameLabel]
	if c.ProxyName == "" && labelled || c.ProxyName != "" && label != c.ProxyName {
		return true
	}
	return o.Spec.Type == corev1.ServiceTypeExternalName || o.Spec.ClusterIP == corev1.ClusterIPNone
}

// hasExternalPolicy tells whether externalTrafficPolicy means anything.
func hasExternalPolicy(o *corev1.Service) bool {
	switch o.Spec.Type {
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return len(o.Spec.ExternalIPs) > 0
}

func (s *service) readClusterIPs(o *corev1.Service, p *problems) {
	ips := o.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{o.Spec.ClusterIP}
	}
	for _, text := range ips {
		if text == "" || text == corev1.ClusterIPNone {
			continue
		}
		a, ok := p.serviceAddr("spec.clusterIPs", text, false)
		if !ok {
			continue
		}
		if slot := s.clusterIPs.of(dataplane.FamilyOf(a)); !slot.IsValid() {
			*slot = a
		}
	}
}

// serviceAddr reads an address at which a Service is to answer.
func (p *problems) serviceAddr(field, text string, linkLocalToo bool) (netip.Addr, bool) {
	a, err := parseAddr(text)
	if err != nil {
		p.add(InvalidAddress, field, err.Error()+"; it is not served")
		return a, false
	}
	if kind := special(a, linkLocalToo); kind != "" {
		p.add(AddressRefused, field, kind+" address "+a.String()+" is not served")
		return a, false
	}
	return a, true
}

func isPort(n int32) bool { return 0 < n && n <= 65535 }

func protocol(p corev1.Protocol) (dataplane.Protocol, error) {
	switch p {
	case "", corev1.ProtocolTCP:
		return dataplane.TCP, nil
	case corev1.ProtocolUDP:
		return dataplane.UDP, nil
	case corev1.ProtocolSCTP:
		return dataplane.SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q carries no Services", p)
}

func (s *service) readPorts(o *corev1.Service, p *problems) {
	s.ports = make([]servicePort, 0, len(o.Spec.Ports))
	for i := range o.Spec.Ports {
		in, field := &o.Spec.Ports[i], "spec.ports["+strconv.Itoa(i)+"]"
		proto, err := protocol(in.Protocol)
		if err != nil {
			p.add(InvalidPort, field, err.Error())
			continue
		}
		if !isPort(in.Port) {
			p.add(InvalidPort, field, fmt.Sprintf("port %d is not served", in.Port))
			continue
		}
		out := servicePort{name: in.Name, protocol: proto, port: uint16(in.Port)}
		if isPort(in.NodePort) {
			out.nodePort = uint16(in.NodePort)
		}
		if s.hasPort(out.name, proto) {
			p.add(InvalidPort, field, fmt.Sprintf("the name %q is there twice; the first port counts", in.Name))
			continue
		}
		s.ports = append(s.ports, out)
	}
}

func (s *service) hasPort(name string, proto dataplane.Protocol) bool {
	for _, p := range s.ports {
		if p.name == name && p.protocol == proto {
			return true
		}
	}
	return false
}

func affinity(s *corev1.ServiceSpec) time.Duration {
	if s.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	c := s.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil || *c.ClientIP.TimeoutSeconds < 1 {
		return defaultAffinity
	}
	return min(time.Duration(*c.ClientIP.TimeoutSeconds)*time.Second, maxAffinity)
}

func priority(o *corev1.Service) dataplane.Priority {
	switch {
	case o.Namespace == "default" && o.Name == "kubernetes":
		return dataplane.PriorityAPIServer
	case o.Namespace == "kube-system" && o.Name == dnsName, o.Labels[dnsLabel] == dnsName:
		return dataplane.PriorityDNS
	}
	return dataplane.PriorityNormal
}
