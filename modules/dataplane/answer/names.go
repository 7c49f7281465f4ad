package answer

import (
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// Port is a port of a Service, for whoever knows only its name.
type Port struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	// Addresses are its ClusterIPs.
	Addresses []netip.Addr `json:"addresses"`
}

// Ports are those of a Service that a snapshot serves; none if it serves none,
// for it does not exist, is headless or another proxy's.
func Ports(s *dataplane.Snapshot, n dataplane.ServiceName) []Port {
	var all []Port
	for sp := range s.ServicePorts() {
		if sp.Name.Service() != n {
			continue
		}
		p := Port{Name: sp.Name.Port, Protocol: sp.Name.Protocol.String()}
		for _, f := range sp.Frontends {
			if f.Kind == dataplane.ClusterIP {
				p.Port, p.Addresses = f.Port, append(p.Addresses, f.Addr)
			}
		}
		all = append(all, p)
	}
	return all
}
