package userspace

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// patience is for what a busy machine may take a while to do.
const patience = 10 * time.Second

// site is a rig whose node runs a plane of one family on one back end.
type site struct {
	testing.TB
	*rig.Rig
	family  dataplane.Family
	backend string
	plane   *Plane
	now     time.Time
}

// onSites runs a test for each back end and family.
func onSites(t *testing.T, test func(*site)) {
	for _, backend := range []string{netfilter.NFT, netfilter.Legacy} {
		for _, f := range dataplane.Families() {
			t.Run(backend+" "+f.String(), func(t *testing.T) {
				s := &site{TB: t, Rig: rig.New(t, rig.Options{}), family: f, backend: backend, now: time.Unix(1000, 0)}
				for _, h := range append(slices.Clone(s.Endpoints), s.Remote) {
					h.ServeAll(t, 8080)
				}
				s.open()
				t.Cleanup(s.close)
				test(s)
			})
		}
	}
}

func (s *site) open() {
	s.Helper()
	err := s.Node.Do(func() error {
		p, err := openWith(s.Context(), Options{Backend: s.backend}, s.family)
		s.plane = p
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) close() {
	s.Helper()
	if err := s.plane.Close(); err != nil {
		s.Error(err)
	}
}

func (s *site) sync(want *dataplane.Snapshot, distrust bool) (r dataplane.Report) {
	s.Helper()
	err := s.Node.Do(func() (err error) {
		r, err = s.plane.Sync(s.Context(), dataplane.SyncRequest{Now: s.now, Want: want, Distrust: distrust})
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	return r
}

func (s *site) addr(h *rig.Host) netip.Addr { return h.Addr(s.family.Unspecified()) }

// vip is a Service address.
func (s *site) vip(n byte) netip.Addr {
	if s.family == dataplane.IPv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x96, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 96, 0, n})
}

// service is a ClusterIP Service to port 8080 of some addresses.
func (s *site) service(name string, p dataplane.Protocol, vip netip.Addr, to ...netip.AddrPort) *dataplane.ServicePort {
	sp := &dataplane.ServicePort{Name: dataplane.ServicePortName{Namespace: "default", Name: name, Protocol: p}}
	route := dataplane.Route{Action: dataplane.Reject}
	if len(to) > 0 {
		pool := &dataplane.Pool{Family: s.family}
		for _, a := range to {
			pool.Endpoints = append(pool.Endpoints, dataplane.Endpoint{Addr: a, Weight: 1})
		}
		slices.SortFunc(pool.Endpoints, func(a, b dataplane.Endpoint) int { return a.Addr.Compare(b.Addr) })
		sp.Pools = []*dataplane.Pool{pool}
		route = dataplane.Route{Action: dataplane.Forward, Pool: pool, Masquerade: dataplane.MasqueradeEither}
	}
	sp.Frontends = []*dataplane.Frontend{{
		Kind: dataplane.ClusterIP, Family: s.family, Addr: vip, Port: 80, Routes: [3]dataplane.Route{route, route, route},
	}}
	return sp
}

func (s *site) at(h *rig.Host) netip.AddrPort { return netip.AddrPortFrom(s.addr(h), 8080) }

// snapshot is what the node must forward after another snapshot.
func (s *site) snapshot(before *dataplane.Snapshot, sps ...*dataplane.ServicePort) *dataplane.Snapshot {
	s.Helper()
	b := before.Edit()
	if before.Node().Mark == 0 {
		b.SetNode(s.node(s.addr(s.Node)))
	}
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

// node is that of every rig.
func (s *site) node(primary netip.Addr) *dataplane.Node {
	node4, node6, err := rig.Addrs("node")
	if err != nil {
		panic(err) // every rig has one
	}
	all := []netip.Addr{node4, node6, rig.Alias4, rig.Alias6}
	slices.SortFunc(all, netip.Addr.Compare)
	return &dataplane.Node{Name: "node", PrimaryIPs: []netip.Addr{primary}, Addresses: all, Mark: 1 << 14}
}

func (s *site) ask(from *rig.Host, to netip.AddrPort) rig.Result {
	return rig.Probe{From: from, Proto: rig.TCP, To: to, Timeout: patience}.Send(s.Context())
}

func (s *site) answers(from *rig.Host, vip netip.Addr, server string) {
	s.Helper()
	if got := s.ask(from, netip.AddrPortFrom(vip, 80)); got.Server != server {
		s.Errorf("%s asks %s and is %s, want an answer of %q", from.Name, vip, got, server)
	}
}

// rules are those of nat, as they are printed.
func (s *site) rules() string {
	s.Helper()
	return s.iptables("-t", "nat", "-S")
}

// iptables runs the family's program of the back end on the node.
func (s *site) iptables(args ...string) string {
	s.Helper()
	tool := "iptables-"
	if s.family == dataplane.IPv6 {
		tool = "ip6tables-"
	}
	out, err := s.Node.Run(s.Context(), append([]string{tool + s.backend}, args...)...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// listener is where the only pool's flows are taken.
func (s *site) listener() netip.AddrPort {
	s.Helper()
	for _, l := range s.plane.listeners.open {
		return l.Addr()
	}
	s.Fatal("nobody listens")
	return netip.AddrPort{}
}
