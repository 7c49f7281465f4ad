package config

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// parsePrefix reads a CIDR as kube-proxy does: blanks around it, host bits and
// leading zeros in octets, which are decimal, are no mistakes.
func parsePrefix(s string) (netip.Prefix, error) {
	_, n, err := netutils.ParseCIDRSloppy(strings.TrimSpace(s))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a, bits), nil
}

// prefixes reads those that are valid.
func prefixes(list []string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		if p, err := parsePrefix(s); err == nil {
			ps = append(ps, p)
		}
	}
	return ps
}

// ClusterCIDRs returns the pod ranges of the cluster, at most one for each
// family.
func ClusterCIDRs(cfg *v1alpha1.KubeProxyConfiguration) []netip.Prefix {
	return prefixes(splitCIDRs(cfg.ClusterCIDR))
}

func splitCIDRs(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// NodeIP returns the address that bindAddress says the node has; the zero Addr
// if it leaves that to the Node object.
func NodeIP(cfg *v1alpha1.KubeProxyConfiguration) netip.Addr {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(cfg.BindAddress))
	if !ok || a.Unmap().IsUnspecified() {
		return netip.Addr{}
	}
	return a.Unmap()
}
