package relay

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// loopbackSite is a node with a plane for each family.
type loopbackSite struct {
	*site
	planes map[dataplane.Family]*Loopback
	now    time.Time
}

func newLoopbackSite(t *testing.T) *loopbackSite {
	s := &loopbackSite{site: newSite(t, Config{}), planes: make(map[dataplane.Family]*Loopback), now: start}
	for _, h := range s.Endpoints {
		h.Serve(t, rig.TCP, 8080)
	}
	for _, f := range dataplane.Families() {
		p := NewLoopback(f, Config{Dial: s.dial, Log: slog.New(slog.NewTextHandler(s.log, nil))})
		s.planes[f] = p
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s
}

func (s *loopbackSite) sync(want *dataplane.Snapshot, distrust bool) map[dataplane.Family]dataplane.Report {
	s.Helper()
	all := make(map[dataplane.Family]dataplane.Report)
	for f, p := range s.planes {
		err := s.Node.Do(func() (err error) {
			all[f], err = p.Sync(s.Context(), dataplane.SyncRequest{Now: s.now, Want: want, Distrust: distrust})
			return err
		})
		if err != nil {
			s.Fatal(err)
		}
	}
	return all
}

// nodePort is a Service with a NodePort in both families; no host is no endpoint.
func nodePort(name string, protocol dataplane.Protocol, port uint16, hosts ...*rig.Host) *dataplane.ServicePort {
	sp := &dataplane.ServicePort{Name: dataplane.ServicePortName{Namespace: "default", Name: name, Protocol: protocol}}
	for _, f := range dataplane.Families() {
		route := dataplane.Route{Action: dataplane.Reject}
		if len(hosts) > 0 {
			p := &dataplane.Pool{Family: f}
			for _, h := range hosts {
				a := h.Addr(f.Unspecified())
				p.Endpoints = append(p.Endpoints, dataplane.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Weight: 1})
			}
			sp.Pools = append(sp.Pools, p)
			route = dataplane.Route{Action: dataplane.Forward, Pool: p, Masquerade: dataplane.MasqueradeYes}
		}
		sp.Frontends = append(sp.Frontends, &dataplane.Frontend{
			Kind: dataplane.NodePort, Family: f, Port: port, Routes: [3]dataplane.Route{route, route, route},
		})
	}
	return sp
}

// wants is a snapshot after another one, on a node that wants NodePorts at its
// loopback addresses.
func (s *loopbackSite) wants(before *dataplane.Snapshot, wanted bool, sps ...*dataplane.ServicePort) *dataplane.Snapshot {
	s.Helper()
	b := before.Edit()
	b.SetNode(&dataplane.Node{LoopbackNodePorts: wanted})
	for sp := range before.ServicePorts() {
		b.Delete(sp.Name)
	}
	for _, sp := range sps {
		b.Put(sp)
	}
	snapshot, err := b.Build()
	if err != nil {
		s.Fatal(err)
	}
	return snapshot
}

// reaches sends a connection from the node to itself, in both families; "" wants
// a refusal. What the planes explain must agree with the snapshot.
func (s *loopbackSite) reaches(want *dataplane.Snapshot, port uint16, server string) {
	s.Helper()
	for f, p := range s.planes {
		to := netip.AddrPortFrom(f.Loopback(), port)
		got := rig.Probe{From: s.Node, Proto: rig.TCP, To: to, Timeout: patience}.Send(s.Context())
		if server == "" && got.Outcome != rig.Refused || got.Server != server {
			s.Errorf("%s is %s, want %q", to, got, server)
		}
		found, err := p.Audit(s.Context(), want)
		if err != nil || len(found) != 0 {
			s.Errorf("audit %s: %v, %v", f, found, err)
		}
		flow := dataplane.Flow{Src: netip.AddrPortFrom(f.Loopback(), 40000), Dst: to, Protocol: dataplane.TCP}
		e, err := p.Explain(s.Context(), flow)
		if v := want.Decide(flow); err != nil || v.Action == dataplane.Forward && v.Agrees(e) != nil {
			s.Errorf("explain %s: %v, %v", flow, v.Agrees(e), err)
		}
	}
}

// kubernetes#90236: NodePorts at 127.0.0.1 and ::1, without route_localnet
// (CVE-2020-8558).
// Proves S5.5.
func TestLoopbackNodePorts(t *testing.T) {
	s := newLoopbackSite(t)
	web, dns := nodePort("web", dataplane.TCP, 30080, s.Endpoints[0]), nodePort("dns", dataplane.UDP, 30053, s.Endpoints[0])
	want := s.wants(dataplane.Empty(), true, web, dns)
	for f, r := range s.sync(want, false) {
		if r.Writes != 1 || !r.Full || len(r.Failed) != 0 {
			t.Errorf("%s: %+v", f, r)
		}
	}
	s.reaches(want, 30080, "e1")
	for _, distrust := range []bool{false, true} {
		for f, r := range s.sync(want, distrust) {
			if r.Writes != 0 {
				t.Errorf("%s: a second Sync writes %d", f, r.Writes)
			}
		}
	}
	if v, err := s.Node.Sysctl("net.ipv4.conf.all.route_localnet"); err != nil || v != "0" {
		t.Errorf("route_localnet is %q, %v", v, err)
	}
	for _, step := range []struct {
		name   string
		wanted bool
		sps    []*dataplane.ServicePort
		server string
	}{
		{"other endpoint", true, []*dataplane.ServicePort{nodePort("web", dataplane.TCP, 30080, s.Endpoints[1])}, "e2"},
		{"no endpoint", true, []*dataplane.ServicePort{nodePort("web", dataplane.TCP, 30080)}, ""},
		{"an endpoint again", true, []*dataplane.ServicePort{web}, "e1"},
		{"deleted", true, nil, ""},
		{"port of another Service", true, []*dataplane.ServicePort{nodePort("a", dataplane.TCP, 30080, s.Endpoints[2])}, "e3"},
		{"and of a third", true, []*dataplane.ServicePort{nodePort("b", dataplane.TCP, 30080, s.Endpoints[1])}, "e2"},
		{"not wanted", false, []*dataplane.ServicePort{web}, ""},
		{"wanted again", true, []*dataplane.ServicePort{web}, "e1"},
	} {
		want = s.wants(want, step.wanted, step.sps...)
		s.sync(want, false)
		t.Log(step.name)
		s.reaches(want, 30080, step.server)
	}
}

// kubernetes#61953: a port that somebody else has is reported, does not stop
// the others, and is tried again; other addresses are not taken.
// Proves S5.5.
func TestLoopbackPortIsTaken(t *testing.T) {
	s := newLoopbackSite(t)
	stranger, err := s.Node.Listen(t.Context(), ":30080")
	if err != nil {
		t.Fatal(err)
	}
	want := s.wants(dataplane.Empty(), true, nodePort("web", dataplane.TCP, 30080, s.Endpoints[0]), nodePort("app", dataplane.TCP, 30081, s.Endpoints[0]))
	for f, r := range s.sync(want, false) {
		if len(r.Failed) != 1 || r.Failed[0].Name.Name != "web" || !strings.Contains(r.Failed[0].Err.Error(), "in use") || r.Again != start.Add(retryAfter) {
			t.Errorf("%s: %+v", f, r)
		}
	}
	s.reaches(s.wants(want, true, nodePort("app", dataplane.TCP, 30081, s.Endpoints[0])), 30082, "")
	stranger.Close()
	for f, r := range s.sync(want, false) {
		if len(r.Failed) != 1 {
			t.Errorf("%s is tried before its time: %+v", f, r)
		}
	}
	s.now = s.now.Add(retryAfter)
	for f, r := range s.sync(want, false) {
		if len(r.Failed) != 0 || !r.Again.IsZero() {
			t.Errorf("%s: %+v", f, r)
		}
	}
	s.reaches(want, 30080, "e1")
	if other, err := s.Node.Listen(t.Context(), netip.AddrPortFrom(s.Node.Addr4, 30080).String()); err != nil {
		t.Errorf("the port is taken at the node's other addresses: %v", err)
	} else {
		other.Close()
	}
}

func TestLoopbackStops(t *testing.T) {
	s := newLoopbackSite(t)
	want := s.wants(dataplane.Empty(), true, nodePort("web", dataplane.TCP, 30080, s.Endpoints[0]))
	s.sync(want, false)
	for f, p := range s.planes {
		if err := p.Close(); err != nil {
			t.Errorf("close %s: %v", f, err)
		}
		found, err := p.Audit(t.Context(), want)
		if err != nil || len(found) != 1 || found[0].Have != "" {
			t.Errorf("the audit of a closed plane finds %v, %v", found, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = s.Node.Do(func() error {
			_, err := p.Sync(ctx, dataplane.SyncRequest{Now: s.now, Want: want})
			return err
		})
		if err == nil {
			t.Error("a Sync whose context has ended succeeds")
		}
	}
	s.sync(want, false)
	s.reaches(want, 30080, "e1")
}
