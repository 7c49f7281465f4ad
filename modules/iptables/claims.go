package iptables

import (
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// claims are the frontends that dispatch chains know, kube-proxy's too.
type claims struct {
	family dataplane.Family
	keys   []dataplane.FrontendKey
}

func (c *claims) observe(id program.ChainID, rules []netfilter.Rule) {
	if id.Table != netfilter.NAT || !oneOf(id.Name, chainServices, chainNodePorts) &&
		!begins(id.Name, chainServices+"-", chainNodePorts+"-") {
		return
	}
	for i := range rules {
		c.claim(&rules[i])
	}
}

// claim notes the frontend that a rule leads to, if it leads to just one.
func (c *claims) claim(r *netfilter.Rule) {
	k := dataplane.FrontendKey{Addr: r.Destination.Addr, Port: r.DestPort.First, Protocol: r.Protocol.Number}
	single := netfilter.MatchAddr(c.family.Unspecified()).Mask
	switch {
	case r.DestPort.Last == 0 || r.DestPort.First != r.DestPort.Last:
		return
	case r.Target.Kind != netfilter.TargetJump && r.Target.Kind != netfilter.TargetGoto:
		return
	case !k.Addr.IsValid():
		k.Addr = c.family.Unspecified()
	case r.Destination.Mask != single || r.Destination.Not:
		return
	}
	c.keys = append(c.keys, k)
}

func oneOf(name string, all ...string) bool {
	for _, s := range all {
		if name == s {
			return true
		}
	}
	return false
}

func begins(name string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
