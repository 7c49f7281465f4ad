package userspace

import (
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/program"
)

// translator makes fragments for one family. It is never changed: where a node
// tells pods from others in another way, it has another one.
type translator struct {
	family   dataplane.Family
	detector dataplane.Detector
	hasPods  bool // there is a detector
}

func newTranslator(n *dataplane.Node, f dataplane.Family) *translator {
	t := &translator{family: f}
	t.detector, t.hasPods = n.Detector(f)
	return t
}

// source is a ServicePort with the listeners of its pools, by scope; the zero
// AddrPort where there is none.
type source struct {
	*translator
	sp *dataplane.ServicePort
	at [2]netip.AddrPort
}

// ServicePort is the version that is translated.
func (s source) ServicePort() *dataplane.ServicePort { return s.sp }

// Fragment translates it. It takes no decision: which endpoints and which answer
// stands in the frontends' routes.
func (s source) Fragment() *program.Fragment {
	out := &program.Fragment{Name: s.sp.Name}
	for _, k := range poolsInUse(s.sp, s.family) {
		at := s.at[k.scope]
		if !at.IsValid() {
			continue
		}
		out.AddChain(netfilter.NAT, k.chain(), netfilter.Rule{
			Protocol: netfilter.Is(s.sp.Name.Protocol), Comment: comment(s.sp.Name), Target: netfilter.DNAT(at),
		})
		out.AddEntry(setListener.of(s.sp.Name.Protocol).entry(s.family, netfilter.SetEntry{Port: at.Port()}))
	}
	for _, fe := range s.sp.Frontends {
		if fe.Family == s.family {
			s.frontend(out, fe)
		}
	}
	return out
}

// poolsInUse are the pools to which a frontend of the family forwards, by scope.
// Nothing leads to those of a protocol that the relay does not carry.
func poolsInUse(sp *dataplane.ServicePort, f dataplane.Family) []poolKey {
	if !slices.Contains(relayed(), sp.Name.Protocol) {
		return nil
	}
	var used [2]bool
	for _, fe := range sp.Frontends {
		for _, r := range fe.Routes {
			if fe.Family == f && r.Action == dataplane.Forward {
				used[r.Pool.Scope] = true
			}
		}
	}
	keys := make([]poolKey, 0, len(used))
	for _, scope := range scopes() {
		if used[scope] {
			keys = append(keys, poolKey{sp.Name, scope})
		}
	}
	return keys
}

func scopes() []dataplane.Scope { return []dataplane.Scope{dataplane.Cluster, dataplane.Local} }

// poolOf is the pool of a key; a ServicePort has one for each family and scope.
func poolOf(sp *dataplane.ServicePort, f dataplane.Family, scope dataplane.Scope) *dataplane.Pool {
	i := slices.IndexFunc(sp.Pools, func(p *dataplane.Pool) bool { return p.Family == f && p.Scope == scope })
	return sp.Pools[i]
}

// frontend adds the rules that lead to pools in nat, and those in filter that
// refuse in another way than usual what nat did not translate.
func (s source) frontend(out *program.Fragment, f *dataplane.Frontend) {
	w := &frontendWriter{source: s, out: out, f: f, key: f.Key(s.sp.Name.Protocol)}
	w.match = netfilter.Rule{Protocol: netfilter.Is(s.sp.Name.Protocol), DestPort: netfilter.Port(f.Port), Comment: comment(s.sp.Name)}
	if f.Kind == dataplane.NodePort {
		w.come, w.host = program.PortBucket(bucketsNodePort, w.key.Protocol, f.Port), program.PortBucket(bucketsNodePortHost, w.key.Protocol, f.Port)
		w.enter(setNodePort.of(w.key.Protocol), netfilter.SetEntry{Port: f.Port})
	} else {
		w.come, w.host = program.AddrBucket(chainPortals, f.Addr), program.AddrBucket(chainPortalsHost, f.Addr)
		w.match.Destination = netfilter.MatchAddr(f.Addr)
		e := netfilter.AddrEntry(f.Addr)
		if f.Kind == dataplane.ClusterIP {
			w.enter(setClusterIP, e)
		}
		e.Protocol, e.Port = w.key.Protocol, f.Port
		w.enter(setFrontend, e)
		if f.Kind != dataplane.ClusterIP || w.rejects() {
			w.enter(setReject, e)
		}
	}
	w.redirect()
	w.refuse()
}

// comment names the ServicePort.
func comment(n dataplane.ServicePortName) string {
	text := n.Service().String()
	if n.Port != "" {
		text += ":" + n.Port
	}
	return netfilter.Comment(text)
}
