package dataplanetest

import (
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// fourPorts is one Service with affinity and enough ports and endpoints that a
// client who is bound for each port separately meets several endpoints.
const fourPorts = `
node detect=ClusterCIDR
web:a TCP 80->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1h
web:b TCP 81->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1h
web:c TCP 82->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1h
web:d TCP 83->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1h
`

// capabilities is law 7, for what the other laws do not see: that the mode has
// what it does not declare to lack, and lacks what it does.
func capabilities(t *testing.T, cfg Config) {
	t.Parallel()
	state, err := ParseState(fourPorts)
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, cfg, state)
	b.mustSync(state)
	apart := b.bindsPortsApart()
	if has := cfg.Mode.Has(dataplane.AffinityByPort); apart != has {
		t.Errorf("clients are bound for each port separately: %t, and the mode declares %t", apart, has)
	}
}

// bindsPortsApart tells whether any of the clients meets different endpoints at
// different ports. That all meet the same ones by chance at separate bindings
// happens once in a billion times.
func (b *bed) bindsPortsApart() bool {
	b.t.Helper()
	apart := false
	for _, from := range []string{"c", "e1", "node", "up", "node2"} {
		servers := make(map[string]bool)
		for sp := range b.want.ServicePorts() {
			for _, f := range sp.Frontends {
				if _, ok := b.planes[f.Family]; !ok {
					continue
				}
				flow := b.state.flow(from, netip.AddrPortFrom(f.Addr, f.Port), dataplane.TCP)
				got := send(b.t.Context(), b.rig, Shot{from, flow}, patience)
				if got.Server == "" {
					b.fail("%s: %s", flow, got)
				}
				servers[f.Family.String()+got.Server] = true
			}
		}
		apart = apart || len(servers) > len(b.planes)
	}
	return apart
}
