package servicecache

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/portway/portway/modules/dataplane"
)

// readExternal reads the addresses at which a Service answers besides its
// ClusterIPs.
func (c *settings) readExternal(s *service, o *corev1.Service, p *problems) {
	const lbField = "status.loadBalancer.ingress"
	for i := range o.Status.LoadBalancer.Ingress {
		in := &o.Status.LoadBalancer.Ingress[i]
		proxied := in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy
		if in.IP == "" || proxied {
			continue
		}
		if a, ok := p.serviceAddr(lbField, in.IP, false); ok && s.takes(a, lbField, p) {
			s.lbIPs = append(s.lbIPs, a)
		}
	}
	s.lbIPs = sortAddrs(s.lbIPs)
	const field = "spec.externalIPs"
	for _, text := range o.Spec.ExternalIPs {
		a, ok := p.serviceAddr(field, text, true)
		if !ok || !s.takes(a, field, p) || slices.Contains(s.lbIPs, a) {
			continue
		}
		if !c.allowsExternalIP(a) {
			p.add(AddressRefused, field, a.String()+" is not served: the proxy's settings do not allow it")
			continue
		}
		s.externalIPs = append(s.externalIPs, a)
	}
	s.externalIPs = sortAddrs(s.externalIPs)
}

// takes tells whether the Service exists in the family of an address
// (kubernetes#73157: one address of the wrong family must not stop the rest).
func (s *service) takes(a netip.Addr, field string, p *problems) bool {
	f := dataplane.FamilyOf(a)
	if s.clusterIPs.of(f).IsValid() {
		return true
	}
	p.add(FamilySkipped, field, fmt.Sprintf("%s is not served: the Service has no %s ClusterIP", a, f))
	return false
}

func (c *settings) allowsExternalIP(a netip.Addr) bool {
	switch c.ExternalIPs {
	case AllExternalIPs:
		return true
	case ListedExternalIPs:
		return slices.ContainsFunc(c.ExternalIPRanges, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return false
}

// readSources reads loadBalancerSourceRanges. Whatever is wrong with an entry,
// access is never widened: as soon as one entry is not blank the ranges count,
// and a family without a valid one is closed.
func (s *service) readSources(o *corev1.Service, p *problems) {
	const field = "spec.loadBalancerSourceRanges"
	var ranges byFamily[[]netip.Prefix]
	limited, everybody := false, false
	for _, text := range o.Spec.LoadBalancerSourceRanges {
		if strings.TrimSpace(text) == "" {
			continue
		}
		limited = true
		r, err := parsePrefix(text)
		if err != nil {
			p.add(InvalidRange, field, err.Error()+"; it allows nobody")
			continue
		}
		everybody = everybody || r.Bits() == 0
		list := ranges.of(prefixFamily(r))
		*list = append(*list, r)
	}
	if !limited || everybody {
		return
	}
	ranges.v4, ranges.v6 = sortPrefixes(ranges.v4), sortPrefixes(ranges.v6)
	s.sources = &ranges
}
