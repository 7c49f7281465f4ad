package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// testNode is the node of every rig, with pods known by the cluster's range.
func testNode() *dataplane.Node {
	node4, node6, _ := rig.Addrs("node")
	addrs := []netip.Addr{node4, node6}
	return &dataplane.Node{
		Name: "node", PrimaryIPs: addrs, Addresses: addrs, NodePortAddrs: addrs,
		Detectors: []dataplane.Detector{
			{Family: dataplane.IPv4, Prefix: rig.ClusterRange4},
			{Family: dataplane.IPv6, Prefix: rig.ClusterRange6},
		},
		PodCIDRs:     []netip.Prefix{rig.PodRange4, rig.PodRange6},
		ServiceCIDRs: []netip.Prefix{rig.ServiceRange4, rig.ServiceRange6},
		Mark:         1 << 14,
	}
}

func tcp(name string) dataplane.ServicePortName {
	return dataplane.ServicePortName{Namespace: "default", Name: name, Protocol: dataplane.TCP}
}

// endpoints are sorted addresses; those on the node's pod range are local.
func endpoints(addrs ...string) []dataplane.Endpoint {
	all := make([]dataplane.Endpoint, len(addrs))
	for i, a := range addrs {
		ap := netip.MustParseAddrPort(a)
		local := rig.PodRange4.Contains(ap.Addr()) || rig.PodRange6.Contains(ap.Addr())
		all[i] = dataplane.Endpoint{Addr: ap, Weight: 1, Local: local}
	}
	slices.SortFunc(all, func(a, b dataplane.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return all
}

// pool is a pool of these endpoints, of the family that they have.
func pool(s dataplane.Scope, es []dataplane.Endpoint) *dataplane.Pool {
	return &dataplane.Pool{Family: dataplane.FamilyOf(es[0].Addr.Addr()), Scope: s, Endpoints: es}
}

func forward(p *dataplane.Pool, m dataplane.Masquerade) dataplane.Route {
	return dataplane.Route{Action: dataplane.Forward, Pool: p, Masquerade: m}
}

func each(r dataplane.Route) [3]dataplane.Route { return [3]dataplane.Route{r, r, r} }

// internalRoutes are those of a ClusterIP, externalRoutes those of other
// addresses with externalTrafficPolicy Cluster.
func internalRoutes(p *dataplane.Pool) [3]dataplane.Route {
	return [3]dataplane.Route{
		dataplane.FromPod:     forward(p, dataplane.MasqueradeNo),
		dataplane.FromNode:    forward(p, dataplane.MasqueradeEither),
		dataplane.FromOutside: forward(p, dataplane.MasqueradeYes),
	}
}

func externalRoutes(p *dataplane.Pool) [3]dataplane.Route {
	return each(forward(p, dataplane.MasqueradeYes))
}

// localRoutes are those of externalTrafficPolicy Local.
func localRoutes(all, local *dataplane.Pool) [3]dataplane.Route {
	outside := dataplane.Route{Action: dataplane.Drop}
	if local != nil {
		outside = forward(local, dataplane.MasqueradeNo)
	}
	return [3]dataplane.Route{
		dataplane.FromPod:     forward(all, dataplane.MasqueradeRemote),
		dataplane.FromNode:    forward(all, dataplane.MasqueradeYes),
		dataplane.FromOutside: outside,
	}
}

// clusterIP is a ServicePort with nothing but a ClusterIP, which rejects if
// there are no endpoints.
func clusterIP(name, addr string, es []dataplane.Endpoint) *dataplane.ServicePort {
	ap := netip.MustParseAddrPort(addr)
	sp := &dataplane.ServicePort{Name: tcp(name)}
	routes := each(dataplane.Route{Action: dataplane.Reject})
	if len(es) > 0 {
		p := pool(dataplane.Cluster, es)
		sp.Pools = []*dataplane.Pool{p}
		routes = internalRoutes(p)
	}
	addFrontend(sp, dataplane.ClusterIP, ap, routes)
	return sp
}

// addFrontend adds a frontend; a NodePort has the unspecified address.
func addFrontend(sp *dataplane.ServicePort, k dataplane.Kind, at netip.AddrPort, routes [3]dataplane.Route) *dataplane.Frontend {
	f := &dataplane.Frontend{Kind: k, Family: dataplane.FamilyOf(at.Addr()), Port: at.Port(), Routes: routes}
	if k != dataplane.NodePort {
		f.Addr = at.Addr()
	}
	sp.Frontends = append(sp.Frontends, f)
	return f
}

// snapshotOf makes a snapshot of the test node.
func snapshotOf(tb testing.TB, sps ...*dataplane.ServicePort) *dataplane.Snapshot {
	tb.Helper()
	b := dataplane.Empty().Edit()
	b.SetNode(testNode())
	for _, sp := range sps {
		b.Put(sp)
	}
	return built(tb, b)
}

func built(tb testing.TB, b *dataplane.Builder) *dataplane.Snapshot {
	tb.Helper()
	s, err := b.Build()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// many are n Services of five endpoints, of which one in five is local.
func many(n int) []*dataplane.ServicePort {
	sps := make([]*dataplane.ServicePort, n)
	for i := range sps {
		var es []string
		for j := range 5 {
			es = append(es, fmt.Sprintf("10.244.%d.%d:8080", (i/250+j)%200+1, i%250+1))
		}
		addr := fmt.Sprintf("10.96.%d.%d:80", i/250, i%250+1)
		sps[i] = clusterIP(fmt.Sprintf("service-%d", i), addr, endpoints(es...))
	}
	return sps
}

// loadBalancer is a Service with a ClusterIP, a load balancer and a NodePort,
// with externalTrafficPolicy Local if there are local endpoints, and perhaps a
// source range.
func loadBalancer(tb testing.TB, remote, local []dataplane.Endpoint, ranges bool) *dataplane.ServicePort {
	tb.Helper()
	es := slices.Concat(remote, local)
	slices.SortFunc(es, func(a, b dataplane.Endpoint) int { return a.Addr.Compare(b.Addr) })
	sp := clusterIP("lb", "10.96.0.9:80", es)
	routes := externalRoutes(sp.Pools[0])
	if local != nil {
		sp.Pools = append(sp.Pools, pool(dataplane.Local, local))
		routes = localRoutes(sp.Pools[0], sp.Pools[1])
	}
	f := addFrontend(sp, dataplane.LoadBalancerIP, netip.MustParseAddrPort("198.51.100.9:80"), routes)
	if ranges {
		f.Sources = &dataplane.SourceRanges{Prefixes: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
	}
	addFrontend(sp, dataplane.NodePort, netip.MustParseAddrPort("0.0.0.0:30080"), routes)
	return sp
}
