package iptables

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// below is the bucket below a chain for an address.
func below(root program.ChainID, a netip.Addr) program.ChainID {
	root.Name = program.AddrBucket(root.Name, a)
	return root
}

// forPort is the bucket of a NodePort.
func forPort(k dataplane.FrontendKey) program.ChainID {
	root := natNodePorts()
	root.Name = program.PortBucket(root.Name, k.Protocol, k.Port)
	return root
}

// dispatch leads the flows of a frontend to a target of the nat table.
func (w *writer) dispatch(f *dataplane.Frontend, target netfilter.Target) {
	r, k := w.match(f), f.Key(w.sp.Name.Protocol)
	r.Target = target
	r.Comment = w.comment(f)
	if f.Kind == dataplane.NodePort {
		w.out.AddRules(forPort(k), k, r)
		return
	}
	if target.Kind == netfilter.TargetAccept {
		r.Comment = netfilter.Comment(r.Comment + " has no endpoints")
	}
	w.out.AddRules(below(natServices(), f.Addr), k, r)
}

// match matches the flows that mean a frontend; whether the address takes
// NodePorts was asked before.
func (w *writer) match(f *dataplane.Frontend) netfilter.Rule {
	r := netfilter.Rule{Protocol: netfilter.Is(w.sp.Name.Protocol), DestPort: netfilter.Port(f.Port)}
	if f.Kind != dataplane.NodePort {
		r.Destination = netfilter.MatchAddr(f.Addr)
	}
	return r
}

// comment names the frontend in kube-proxy's words.
func (w *writer) comment(f *dataplane.Frontend) string {
	text := w.sp.Name.Service().String()
	if w.sp.Name.Port != "" {
		text += ":" + w.sp.Name.Port
	}
	switch f.Kind {
	case dataplane.ClusterIP:
		text += " cluster IP"
	case dataplane.LoadBalancerIP:
		text += " loadbalancer IP"
	case dataplane.ExternalIP:
		text += " external IP"
	}
	return netfilter.Comment(text)
}

// portEntry is an entry of a hash:ip,port set.
func portEntry(k dataplane.FrontendKey) netfilter.SetEntry {
	e := netfilter.AddrEntry(k.Addr)
	e.Protocol, e.Port = k.Protocol, k.Port
	return e
}
