package dataplanetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// fourPorts is one Service with affinity and enough ports and endpoints that a
// client who is bound for each port, or for each frontend, separately meets
// several endpoints.
const fourPorts = `
node detect=ClusterCIDR
web:a TCP 80->8080 ips=10.96.0.10,fd00:96::10 nodePort=30080 endpoints=e1,e2,remote,node2 affinity=1h
web:b TCP 81->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1h
web:c TCP 82->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1h
web:d TCP 83->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1h
`

// capabilities is law 7, for what the other laws do not see: that the mode has
// what it does not declare to lack, and lacks what it does.
// Proves S6.2, S9.8, kubernetes#103000.
func capabilities(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, fourPorts)
	ports, frontends := b.bindsApart()
	if has := cfg.Mode.Has(dataplane.AffinityByPort); ports != has {
		t.Errorf("clients are bound for each port separately: %t, and the mode declares %t", ports, has)
	}
	if has := cfg.Mode.Has(dataplane.AffinityByPool); frontends == has {
		t.Errorf("clients are bound for each frontend of a port separately: %t, and the mode declares %t", frontends, !has)
	}
}

// shortBinding is a Service whose clients are soon forgotten.
const shortBinding = `
node detect=ClusterCIDR
web TCP 80->8080 ips=10.96.0.10,fd00:96::10 endpoints=e1,e2,remote,node2 affinity=1s
`

// expiry is law 7 for the end of a binding: a client that comes back after the
// timeout, and again, meets another endpoint before long.
// Proves S6.3.
func expiry(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, shortBinding)
	sp, _ := b.want.ServicePort(dataplane.ServicePortName{Namespace: "rig", Name: "web", Protocol: dataplane.TCP})
	frontend := sp.Frontends[slices.IndexFunc(sp.Frontends, func(f *dataplane.Frontend) bool { return f.Family == cfg.families()[0] })]
	first := b.serverOf("c", frontend)
	visits := 15 // by chance all meet the same one of four: once in a billion runs
	if !cfg.Mode.Has(dataplane.AffinityExpiry) {
		visits = 4 // and once in 256, for a mode that should not declare to lack it
	}
	ended := false
	for range visits {
		<-time.After(sp.Affinity + 200*time.Millisecond)
		if ended = b.serverOf("c", frontend) != first; ended {
			break
		}
	}
	if has := cfg.Mode.Has(dataplane.AffinityExpiry); ended != has {
		t.Errorf("a binding ends with its timeout: %t, and the mode declares %t", ended, has)
	}
}

func syncedBed(t *testing.T, cfg Config, text string) *bed {
	t.Helper()
	state, err := ParseState(text)
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, cfg, state)
	b.mustSync(state)
	return b
}

// draining is law 7 for a Service whose last endpoint has left, with a connection:
// the node itself is refused at once, or within the two seconds in which a SYN is
// sent twice.
// Proves S9.8.
func draining(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, public)
	for f := range b.planes {
		to := netip.AddrPortFrom(clusterIPOf(b.service("web"), f), 80)
		conn, err := b.greeted("c", 0, to)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	left, err := ParseState(strings.ReplaceAll(public, " endpoints=e1", ""))
	if err != nil {
		t.Fatal(err)
	}
	b.mustSync(left)
	late := 0
	for f := range b.planes {
		to := netip.AddrPortFrom(clusterIPOf(b.service("web"), f), 80)
		for range 3 {
			if b.askOne("node", to).Outcome != rig.Refused {
				late++
			}
		}
		flow := b.state.flow("node", to, dataplane.TCP)
		if got := send(t.Context(), b.rig, Shot{From: "node", Flow: flow}, 2*patience); got.Outcome != rig.Refused {
			t.Errorf("%s: within two seconds the node is %s", f, got)
		}
	}
	if has := cfg.Mode.Has(dataplane.RefuseWhileDraining); has != (late == 0) {
		t.Errorf("the node is not refused at once %d times, and the mode declares that it is: %t", late, has)
	}
}

// twoFrontends is one endpoint behind two Services.
const twoFrontends = `
node detect=ClusterCIDR
one TCP 80->8080 ips=10.96.0.10,fd00:96::10 nodePort=30080 endpoints=e1
two TCP 80->8080 ips=10.96.0.11,fd00:96::11 nodePort=30081 endpoints=e1
`

// sourcePorts is law 7 for flows of one source port (kubernetes#107249).
// Proves S9.8.
func sourcePorts(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, twoFrontends)
	for f := range b.planes {
		able := true
		for sp := range b.want.ServicePorts() {
			conn, err := b.greeted("c", 5000, netip.AddrPortFrom(clusterIPOf(sp, f), 80))
			if able = able && err == nil; err == nil {
				t.Cleanup(func() { conn.Close() })
			}
		}
		if has := cfg.Mode.Has(dataplane.SourcePorts); able != has {
			t.Errorf("%s: a client reaches one endpoint through two Services from one source port: %t, and the mode declares %t", f, able, has)
		}
	}
}

func clusterIPOf(sp *dataplane.ServicePort, f dataplane.Family) netip.Addr {
	for _, frontend := range sp.Frontends {
		if frontend.Kind == dataplane.ClusterIP && frontend.Family == f {
			return frontend.Addr
		}
	}
	return netip.Addr{}
}

// greeted opens a connection from a source port and waits for the server's word.
func (b *bed) greeted(from string, port uint16, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	conn, err := b.rig.Host(from).Dial(ctx, rig.TCP, netip.AddrPortFrom(netip.Addr{}, port), to)
	if err != nil {
		return nil, err
	}
	if got := rig.Ask(ctx, conn); got.Outcome != rig.Answered {
		conn.Close()
		return nil, fmt.Errorf("it is %s", got)
	}
	return conn, nil
}

// masquerade shows that masquerading chooses source ports by chance: those that
// clients have chosen are kept by some and clash with others' (kubernetes#76699).
// Proves S3.10.
func masquerade(t *testing.T, cfg Config) {
	t.Parallel()
	b := syncedBed(t, cfg, twoFrontends)
	node4, node6, err := rig.Addrs("node")
	if err != nil {
		t.Fatal(err)
	}
	const flows = 20
	for f := range b.planes {
		kept := 0
		for port := uint16(5000); port < 5000+flows; port++ {
			got := rig.Probe{
				From: b.rig.Host("up"), Proto: rig.TCP, Timeout: patience,
				Source: netip.AddrPortFrom(netip.Addr{}, port), To: netip.AddrPortFrom(ofFamily(f, node4, node6), 30080),
			}.Send(t.Context())
			if got.Outcome != rig.Answered {
				t.Fatalf("up:%d is %s", port, got)
			}
			if got.Source.Port() == port {
				kept++
			}
		}
		if kept > 1 { // by chance: once in a hundred million runs
			t.Errorf("%s: of %d masqueraded flows %d keep their source port", f, flows, kept)
		}
	}
}

// bindsApart tells whether any of the clients meets different endpoints at
// different ports, and at different frontends of a port. That all meet the same
// ones by chance at separate bindings happens once in a billion times. Clients
// take turns in being the first, or a mode that takes endpoints in turn would
// bind them alike.
func (b *bed) bindsApart() (ports, frontends bool) {
	b.t.Helper()
	clients := []string{"c", "e1", "node", "up", "node2"}
	type visit struct {
		client string
		family dataplane.Family
		port   string
	}
	first, atPort := make(map[visit]string), make(map[visit]string)
	turn := 0
	for sp := range b.want.ServicePorts() {
		for _, f := range sp.Frontends {
			if _, ok := b.planes[f.Family]; !ok {
				continue
			}
			turn++
			for i := range clients {
				from := clients[(turn+i)%len(clients)]
				got := b.serverOf(from, f)
				any, here := visit{from, f.Family, ""}, visit{from, f.Family, sp.Name.Port}
				if before, asked := atPort[here]; asked {
					frontends = frontends || before != got
					continue
				}
				atPort[here] = got
				if before, asked := first[any]; asked {
					ports = ports || before != got
				} else {
					first[any] = got
				}
			}
		}
	}
	return ports, frontends
}

// serverOf is who answers a client at a frontend.
func (b *bed) serverOf(from string, f *dataplane.Frontend) string {
	b.t.Helper()
	to := netip.AddrPortFrom(f.Addr, f.Port)
	if f.Kind == dataplane.NodePort {
		to = netip.AddrPortFrom(nodeAddrs(f.Family)[0], f.Port)
	}
	flow := b.state.flow(from, to, dataplane.TCP)
	got := send(b.t.Context(), b.rig, Shot{From: from, Flow: flow}, patience)
	if got.Server == "" {
		b.fail("%s: %s", flow, got)
	}
	return got.Server
}
