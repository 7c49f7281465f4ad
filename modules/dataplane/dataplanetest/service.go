package dataplanetest

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Service is one port of a Service, with the hosts of a rig as endpoints. It
// exists in the families in which it has a ClusterIP.
type Service struct {
	// Name is the Service's name, with ":port" if it has several ports.
	Name       string
	Protocol   dataplane.Protocol
	Port       uint16
	TargetPort uint16
	ClusterIPs []netip.Addr
	// NodePort is 0 if there is none.
	NodePort      uint16
	LoadBalancers []netip.Addr
	ExternalIPs   []netip.Addr
	Endpoints     []Backend
	// Internal and External are the traffic policies.
	Internal, External dataplane.Scope
	Affinity           time.Duration
	// SourceRanges limit who may use the load balancer's addresses; nil is
	// everybody.
	SourceRanges []netip.Prefix
}

// Backend is a host of the rig as an endpoint.
type Backend struct {
	Host   string
	Weight uint16
}

// isLocal tells whether the host is the node under test or a pod of it.
func (b Backend) isLocal() bool { return b.Host == "node" || isPod(b.Host) }

// isPod tells whether a host is a pod of the node under test.
func isPod(host string) bool { return strings.HasPrefix(host, "e") || host == "c" }

func (b Backend) endpoint(f dataplane.Family, port uint16) dataplane.Endpoint {
	v4, v6, err := rig.Addrs(b.Host)
	if err != nil {
		panic(err) // ParseService has checked it
	}
	addr := v4
	if f == dataplane.IPv6 {
		addr = v6
	}
	return dataplane.Endpoint{Addr: netip.AddrPortFrom(addr, port), Weight: b.Weight, Local: b.isLocal()}
}

func (s Service) portName() dataplane.ServicePortName {
	name, port, _ := strings.Cut(s.Name, ":")
	return dataplane.ServicePortName{Namespace: "rig", Name: name, Port: port, Protocol: s.Protocol}
}

// servicePort takes the decisions that a dataplane is spared.
func (s Service) servicePort(state State, node *dataplane.Node) *dataplane.ServicePort {
	sp := &dataplane.ServicePort{Name: s.portName(), Affinity: s.Affinity}
	for _, clusterIP := range s.ClusterIPs {
		d := decision{Service: s, family: dataplane.FamilyOf(clusterIP), state: state, node: node}
		d.choosePools()
		sp.Frontends = append(sp.Frontends, d.frontends(clusterIP)...)
		sp.Pools = append(sp.Pools, d.usedPools(sp.Frontends)...)
		if d.all != nil {
			for _, e := range d.all.Endpoints {
				sp.Serving = append(sp.Serving, e.Addr)
			}
		}
	}
	slices.SortFunc(sp.Serving, netip.AddrPort.Compare)
	return sp
}

// decision is what a Service means in one family.
type decision struct {
	Service
	family     dataplane.Family
	state      State
	node       *dataplane.Node
	all, local *dataplane.Pool // nil if empty
}

func (d *decision) choosePools() {
	var all, local []dataplane.Endpoint
	for _, b := range d.Endpoints {
		e := b.endpoint(d.family, d.TargetPort)
		all = append(all, e)
		if e.Local {
			local = append(local, e)
		}
	}
	d.all = d.pool(dataplane.Cluster, all)
	d.local = d.pool(dataplane.Local, local)
}

func (d *decision) pool(scope dataplane.Scope, endpoints []dataplane.Endpoint) *dataplane.Pool {
	if len(endpoints) == 0 {
		return nil
	}
	slices.SortFunc(endpoints, func(a, b dataplane.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return &dataplane.Pool{Family: d.family, Scope: scope, Endpoints: endpoints}
}

// usedPools are those that a frontend of this family forwards to.
func (d *decision) usedPools(frontends []*dataplane.Frontend) []*dataplane.Pool {
	var used []*dataplane.Pool
	for _, p := range []*dataplane.Pool{d.all, d.local} {
		if p != nil && slices.ContainsFunc(frontends, func(f *dataplane.Frontend) bool {
			return slices.ContainsFunc(f.Routes[:], func(r dataplane.Route) bool { return r.Pool == p })
		}) {
			used = append(used, p)
		}
	}
	return used
}

func (d *decision) frontends(clusterIP netip.Addr) []*dataplane.Frontend {
	internal, external := d.internalRoutes(), d.externalRoutes()
	all := []*dataplane.Frontend{d.frontend(dataplane.ClusterIP, clusterIP, d.Port, internal)}
	for _, ip := range d.ofFamily(d.LoadBalancers) {
		f := d.frontend(dataplane.LoadBalancerIP, ip, d.Port, external)
		f.Sources = d.sources()
		all = append(all, f)
	}
	for _, ip := range d.ofFamily(d.ExternalIPs) {
		all = append(all, d.frontend(dataplane.ExternalIP, ip, d.Port, external))
	}
	if d.NodePort != 0 {
		all = append(all, d.frontend(dataplane.NodePort, netip.Addr{}, d.NodePort, external))
	}
	return all
}

func (d *decision) frontend(k dataplane.Kind, ip netip.Addr, port uint16, routes [3]dataplane.Route) *dataplane.Frontend {
	return &dataplane.Frontend{Kind: k, Family: d.family, Addr: ip, Port: port, Routes: routes}
}

func (d *decision) ofFamily(ips []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(ips), func(a netip.Addr) bool { return dataplane.FamilyOf(a) != d.family })
}

func (d *decision) internalRoutes() [3]dataplane.Route {
	pool := d.all
	if d.Internal == dataplane.Local {
		pool = d.local
	}
	switch {
	case pool == nil && d.all != nil && d.state.DropInternal:
		return everyOrigin(dataplane.Route{Action: dataplane.Drop})
	case pool == nil:
		return everyOrigin(dataplane.Route{Action: dataplane.Reject})
	}
	outside := dataplane.MasqueradeNo
	if _, ok := d.node.Detector(d.family); ok {
		outside = dataplane.MasqueradeYes
	}
	routes := [3]dataplane.Route{
		dataplane.FromPod:     forward(pool, dataplane.MasqueradeNo),
		dataplane.FromNode:    forward(pool, dataplane.MasqueradeEither),
		dataplane.FromOutside: forward(pool, outside),
	}
	if d.state.MasqueradeAll {
		routes = everyOrigin(forward(pool, dataplane.MasqueradeYes))
	}
	return routes
}

func (d *decision) externalRoutes() [3]dataplane.Route {
	switch {
	case d.all == nil:
		return everyOrigin(dataplane.Route{Action: dataplane.Reject})
	case d.External == dataplane.Cluster:
		return everyOrigin(forward(d.all, dataplane.MasqueradeYes))
	}
	outside := dataplane.Route{Action: dataplane.Drop}
	if d.local != nil {
		outside = forward(d.local, dataplane.MasqueradeNo)
	}
	return [3]dataplane.Route{
		dataplane.FromPod:     forward(d.all, dataplane.MasqueradeRemote),
		dataplane.FromNode:    forward(d.all, dataplane.MasqueradeYes),
		dataplane.FromOutside: outside,
	}
}

// sources closes a family for which there is no range.
func (d *decision) sources() *dataplane.SourceRanges {
	if d.SourceRanges == nil {
		return nil
	}
	r := &dataplane.SourceRanges{}
	for _, p := range d.SourceRanges {
		if dataplane.FamilyOf(p.Addr()) == d.family {
			r.Prefixes = append(r.Prefixes, p.Masked())
			r.Node = r.Node || p.Contains(d.node.PrimaryIP(d.family))
		}
	}
	slices.SortFunc(r.Prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return r
}

func forward(p *dataplane.Pool, m dataplane.Masquerade) dataplane.Route {
	return dataplane.Route{Action: dataplane.Forward, Pool: p, Masquerade: m}
}

func everyOrigin(r dataplane.Route) [3]dataplane.Route { return [3]dataplane.Route{r, r, r} }
