package servicecache

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/portway/portway/modules/dataplane"
)

// slice is what the cache keeps of an EndpointSlice. It is immutable.
type slice struct {
	name      sliceName
	service   dataplane.ServiceName
	family    dataplane.Family
	trigger   time.Time // when the control plane saw the cause, if stamped
	ports     []slicePort
	endpoints []endpoint
	problems  []Problem
}

type sliceName struct{ namespace, name string }

type slicePort struct {
	name     string
	protocol dataplane.Protocol
	port     uint16
}

// endpoint is one address with its conditions. A cluster has very many.
type endpoint struct {
	addr  netip.Addr
	zones zoneHints
	state
}

type state struct {
	ready, serving, terminating bool
	local                       bool // on this node
	nodeHints, hintsNode        bool // any hints for nodes; one names this node
}

// terminates tells whether the endpoint is fit for the fall-back.
func (s state) terminates() bool { return !s.ready && s.serving && s.terminating }

// rank orders rivals for one address and port; lower wins.
func (s state) rank() int {
	r := 4
	if s.ready {
		r = 0
	} else if s.serving {
		r = 2
	}
	if s.terminating {
		r++
	}
	return r
}

// zoneHints are the names of zones, kept once for all endpoints that have the
// same.
type zoneHints struct{ h unique.Handle[string] }

const zoneSeparator = "\x00"

func makeZoneHints(zones []discoveryv1.ForZone) zoneHints {
	if len(zones) == 0 {
		return zoneHints{}
	}
	var b strings.Builder
	for _, z := range zones {
		b.WriteString(zoneSeparator)
		b.WriteString(z.Name)
	}
	b.WriteString(zoneSeparator)
	return zoneHints{unique.Make(b.String())}
}

func (z zoneHints) any() bool { return z != zoneHints{} }

func (z zoneHints) has(zone string) bool {
	return z.any() && strings.Contains(z.h.Value(), zoneSeparator+zone+zoneSeparator)
}

// slice keeps of an object what matters; nil if nothing does.
func (c *settings) slice(o *discoveryv1.EndpointSlice) *slice {
	owner := o.Labels[discoveryv1.LabelServiceName]
	_, headless := o.Labels[corev1.IsHeadlessService]
	if owner == "" || headless {
		return nil
	}
	s := &slice{
		name:    sliceName{o.Namespace, o.Name},
		service: dataplane.ServiceName{Namespace: o.Namespace, Name: owner},
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
		s.family = dataplane.IPv4
	case discoveryv1.AddressTypeIPv6:
		s.family = dataplane.IPv6
	default:
		return nil
	}
	if t, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		s.trigger = t
	}
	s.readPorts(o)
	s.endpoints = make([]endpoint, 0, len(o.Endpoints))
	p := &problems{object: ObjectRef{"EndpointSlice", "discovery.k8s.io/v1", o.Namespace, o.Name, o.UID}}
	for i := range o.Endpoints {
		c.readEndpoint(s, &o.Endpoints[i], p)
	}
	s.problems = p.list
	return s
}

func (s *slice) readPorts(o *discoveryv1.EndpointSlice) {
	s.ports = make([]slicePort, 0, len(o.Ports))
	for _, in := range o.Ports {
		var out slicePort
		if in.Port == nil || !isPort(*in.Port) {
			continue
		}
		if in.Protocol != nil {
			p, err := protocol(*in.Protocol)
			if err != nil {
				continue
			}
			out.protocol = p
		} else {
			out.protocol = dataplane.TCP
		}
		if in.Name != nil {
			out.name = *in.Name
		}
		out.port = uint16(*in.Port)
		s.ports = append(s.ports, out)
	}
}

func (c *settings) readEndpoint(s *slice, o *discoveryv1.Endpoint, p *problems) {
	if len(o.Addresses) == 0 {
		return
	}
	const field = "endpoints.addresses" // an index would make old news new
	a, err := parseAddr(o.Addresses[0])
	if err != nil {
		p.add(InvalidAddress, field, err.Error()+"; it is not used")
		return
	}
	if kind := special(a, true); kind != "" {
		p.add(AddressRefused, field, kind+" address "+a.String()+" is not used")
		return
	}
	if dataplane.FamilyOf(a) != s.family {
		p.add(FamilySkipped, field, a.String()+" is not used: it is not of the slice's address type")
		return
	}
	e := endpoint{addr: a, state: state{
		ready:       isTrue(o.Conditions.Ready, true),
		serving:     isTrue(o.Conditions.Serving, true),
		terminating: isTrue(o.Conditions.Terminating, false),
		local:       o.NodeName != nil && *o.NodeName == c.NodeName && c.NodeName != "",
	}}
	if h := o.Hints; h != nil {
		e.zones = makeZoneHints(h.ForZones)
		e.nodeHints = len(h.ForNodes) > 0
		for _, n := range h.ForNodes {
			e.hintsNode = e.hintsNode || n.Name == c.NodeName
		}
	}
	s.endpoints = append(s.endpoints, e)
}

func isTrue(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

// equal tells whether two versions of a slice ask for the same; the stamp of
// the control plane alone asks for nothing.
func (s *slice) equal(o *slice) bool {
	return s.family == o.family && slices.Equal(s.ports, o.ports) &&
		slices.Equal(s.endpoints, o.endpoints) && slices.Equal(s.problems, o.problems)
}
