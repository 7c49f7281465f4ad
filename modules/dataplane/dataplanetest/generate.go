package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"pgregory.net/rapid"

	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// maxServices keeps the probes of a state to a few hundred.
const maxServices = 6

// targetPorts are where the endpoints of a rig serve.
var targetPorts = []uint16{8080, 8081}

// States generates states whose every address means something in a rig.
func States() *rapid.Generator[State] {
	return rapid.Custom(func(t *rapid.T) State {
		s := State{
			Detect:          rapid.SampledFrom([]Detect{DetectCluster, DetectNode, DetectInterface, DetectBridge, DetectNothing}).Draw(t, "detect"),
			MasqueradeAll:   oneIn(t, 5, "masqueradeAll"),
			DropUnallocated: rapid.Bool().Draw(t, "dropUnallocated"),
			DropInternal:    oneIn(t, 4, "dropInternal"),
		}
		s.redrawNode(t)
		for slot := range rapid.IntRange(1, maxServices).Draw(t, "services") {
			s.Services = append(s.Services, drawService(t, slot))
		}
		return s
	})
}

// Successor generates a state that could follow another one on the same node:
// some Services come, go or change, the NodePort addresses may.
func Successor(s State) *rapid.Generator[State] {
	return rapid.Custom(func(t *rapid.T) State {
		next := s
		next.Services = nil
		if oneIn(t, 4, "node changes") {
			next.redrawNode(t)
		}
		for slot := range maxServices {
			old, had := find(s.Services, slot)
			switch change := rapid.SampledFrom([]string{"keep", "keep", "scale", "redraw", "delete"}).Draw(t, fmt.Sprintf("change of %d", slot)); {
			case change == "keep" && had:
				next.Services = append(next.Services, old)
			case change == "scale" && had:
				old.Endpoints = drawBackends(t)
				next.Services = append(next.Services, old)
			case change == "redraw":
				next.Services = append(next.Services, drawService(t, slot))
			}
		}
		return next
	})
}

func (s *State) redrawNode(t *rapid.T) {
	s.NodePorts = rapid.SampledFrom([]NodePorts{NodePortsAll, NodePortsAll, NodePortsPrimary, NodePortsNone}).Draw(t, "nodePorts")
	s.Ignored = nil
	if rapid.Bool().Draw(t, "ignored") {
		s.Ignored = []netip.Addr{address("10.96.9.%d", 9), address("fd00:96::9:%d", 9)}
	}
}

func find(services []Service, slot int) (Service, bool) {
	i := slices.IndexFunc(services, func(s Service) bool { return s.Name == slotName(slot) })
	if i < 0 {
		return Service{}, false
	}
	return services[i], true
}

// slotName names Services so that some are ports of one Service.
func slotName(slot int) string {
	if slot < 2 {
		return fmt.Sprintf("web:p%d", slot)
	}
	return fmt.Sprintf("svc%d", slot)
}

// drawService makes a Service whose addresses and NodePort belong to its slot,
// so that Services never claim the same one, whatever the others are.
func drawService(t *rapid.T, slot int) Service {
	s := Service{
		Name:       slotName(slot),
		Protocol:   rapid.SampledFrom([]dataplane.Protocol{dataplane.TCP, dataplane.UDP}).Draw(t, "protocol"),
		Port:       drawPort(t, slot),
		TargetPort: rapid.SampledFrom(targetPorts).Draw(t, "target port"),
		ClusterIPs: drawIPs(t, "10.96.0.%d", "fd00:96::%d", clusterIPNumber(slot)),
		Endpoints:  drawBackends(t),
		Internal:   drawScope(t, "internal"),
		External:   drawScope(t, "external"),
	}
	if rapid.Bool().Draw(t, "has NodePort") {
		s.NodePort = uint16(30000 + slot)
	}
	if rapid.Bool().Draw(t, "has load balancer") {
		s.LoadBalancers = drawIPs(t, "198.51.100.%d", "fd00:98::%d", 10+slot)
		s.SourceRanges = drawRanges(t)
	}
	if oneIn(t, 3, "has externalIPs") {
		s.ExternalIPs = drawIPs(t, "198.51.100.%d", "fd00:98::%d", 100+slot)
		if oneIn(t, 3, "lists a node address") {
			s.ExternalIPs = append(s.ExternalIPs, rig.Alias4, rig.Alias6)
		}
	}
	if oneIn(t, 3, "has affinity") {
		s.Affinity = time.Duration(rapid.IntRange(1, 86400).Draw(t, "affinity")) * time.Second
	}
	return s
}

// drawPort mostly takes the slot's own port, and sometimes the NodePort of the
// next slot: at an address of the node that a Service lists, that Service comes
// first.
func drawPort(t *rapid.T, slot int) uint16 {
	if oneIn(t, 4, "port is a NodePort") {
		return uint16(30001 + slot)
	}
	return uint16(80 + slot)
}

// clusterIPNumber lets the first two slots share a ClusterIP, as ports of one
// Service do.
func clusterIPNumber(slot int) int { return 10 + max(slot, 1) }

// drawIPs chooses the families: one or both.
func drawIPs(t *rapid.T, format4, format6 string, n int) []netip.Addr {
	v4, v6 := address(format4, n), address(format6, n)
	return rapid.SampledFrom([][]netip.Addr{{v4, v6}, {v4}, {v6}}).Draw(t, "addresses")
}

func drawBackends(t *rapid.T) []Backend {
	var all []Backend
	for _, host := range backends {
		if rapid.Bool().Draw(t, host) {
			all = append(all, Backend{host, rapid.SampledFrom([]uint16{1, 1, 1, 3}).Draw(t, "weight")})
		}
	}
	return all
}

func drawScope(t *rapid.T, label string) dataplane.Scope {
	return rapid.SampledFrom([]dataplane.Scope{dataplane.Cluster, dataplane.Cluster, dataplane.Local}).Draw(t, label)
}

// drawRanges chooses among ranges that hold some of the rig's clients; nil is
// the most likely.
func drawRanges(t *rapid.T) []netip.Prefix {
	if rapid.Bool().Draw(t, "open to all") {
		return nil
	}
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]netip.Prefix{
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("fd00:203::/64"), // up
		rig.NodeRange4, rig.NodeRange6, rig.PodRange4, rig.PodRange6,
		netip.MustParsePrefix("192.0.2.0/24"), // nobody
	}), 1, 4, netip.Prefix.String).Draw(t, "source ranges")
}

func address(format string, n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, n)) }

// oneIn is true for one in n draws, and shrinks to false.
func oneIn(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == n }
