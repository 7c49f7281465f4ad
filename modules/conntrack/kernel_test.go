package conntrack_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// lab is a rig whose node translates by rules that the test writes, in place of
// a plane.
type lab struct {
	*rig.Rig
	t      *testing.T
	family dataplane.Family
	snap   *dataplane.Snapshot
	passes chan conntrack.Pass
	plane  dataplane.Plane
	report dataplane.Report
	stop   context.CancelFunc
}

// inHost is the table of a host of the rig.
type inHost struct{ host *rig.Host }

func (h inHost) Dump(ctx context.Context, f dataplane.Family, yield func(conntrack.Entry) bool) error {
	return h.host.Do(func() error { return conntrack.Table{}.Dump(ctx, f, yield) })
}

func (h inHost) Delete(ctx context.Context, es []conntrack.Entry) (n int, err error) {
	err = h.host.Do(func() error {
		n, err = conntrack.Table{}.Delete(ctx, es)
		return err
	})
	return n, err
}

const serverPort = 5353

func newLab(t *testing.T, f dataplane.Family) *lab {
	l := &lab{Rig: rig.New(t, rig.Options{}), t: t, family: f, snap: snapshot(t), passes: make(chan conntrack.Pass, 1)}
	for _, h := range append(slices.Clone(l.Endpoints), l.Remote) {
		h.Serve(t, rig.UDP, serverPort)
	}
	l.restartAgent()
	return l
}

// restartAgent starts a Cleaner that knows nothing, in place of the last one.
func (l *lab) restartAgent() {
	if l.stop != nil {
		l.stop()
	}
	c := conntrack.NewCleaner(inHost{l.Node}, l.family, func(p conntrack.Pass) { l.passes <- p })
	l.plane = c.Watch(&plane{sync: func(dataplane.SyncRequest) (dataplane.Report, error) { return l.report, nil }})
	ctx, cancel := context.WithCancel(l.t.Context())
	l.stop = cancel
	go c.Run(ctx)
}

func (l *lab) pick(v4, v6 netip.AddrPort) netip.AddrPort {
	if l.family == dataplane.IPv6 {
		return v6
	}
	return v4
}

func (l *lab) vip() netip.AddrPort { return l.pick(vip4, vip6) }

func (l *lab) ext() netip.AddrPort { return l.pick(ext4, port("[fd00:99::2]:53")) }

func (l *lab) nodePort() netip.AddrPort { return l.nodePortAt(l.Node) }

func (l *lab) nodePortAt(h *rig.Host) netip.AddrPort { return nodePortOf(h.Addr(l.vip().Addr())) }

// ep is where a host serves.
func (l *lab) ep(h *rig.Host) netip.AddrPort {
	return netip.AddrPortFrom(h.Addr(l.vip().Addr()), serverPort)
}

// rules makes the node translate each destination to its endpoint, and refuse
// those with none, and nothing else.
func (l *lab) rules(to map[netip.AddrPort]netip.AddrPort) {
	l.t.Helper()
	ip := map[dataplane.Family]string{dataplane.IPv4: "ip", dataplane.IPv6: "ip6"}[l.family]
	var nat, filter strings.Builder
	for dst, ep := range to {
		match := fmt.Sprintf("%s daddr %s udp dport %d", ip, dst.Addr(), dst.Port())
		if ep.IsValid() {
			fmt.Fprintf(&nat, "%s dnat %s to %s\n", match, ip, ep)
		} else {
			fmt.Fprintf(&filter, "%s reject\n", match)
		}
	}
	l.nft(`table inet services
delete table inet services
table inet services {
	chain nat { type nat hook prerouting priority dstnat; ` + "\n" + nat.String() + `}
	chain filter { type filter hook forward priority filter; ` + "\n" + filter.String() + `}
}`)
}

func (l *lab) nft(script string) {
	l.t.Helper()
	if _, err := l.Node.RunInput(l.t.Context(), script, "nft", "-f", "-"); err != nil {
		l.t.Fatalf("%v\n%s", err, script)
	}
}

// service is a UDP Service port with a frontend for each destination and kind.
type service struct {
	name      string
	clusterIP netip.AddrPort
	extra     netip.AddrPort // an externalIP, if valid
	nodePort  uint16
	serving   []netip.AddrPort
	usable    []netip.AddrPort
}

func (l *lab) port(s service) *dataplane.ServicePort {
	sp := &dataplane.ServicePort{
		Name:    dataplane.ServicePortName{Namespace: "test", Name: s.name, Protocol: dataplane.UDP},
		Serving: slices.SortedFunc(slices.Values(s.serving), netip.AddrPort.Compare),
	}
	p := pool(l.family, slices.SortedFunc(slices.Values(s.usable), netip.AddrPort.Compare)...)
	if p != nil {
		sp.Pools = []*dataplane.Pool{p}
	}
	if s.clusterIP.IsValid() {
		sp.Frontends = append(sp.Frontends, frontend(dataplane.ClusterIP, s.clusterIP, p))
	}
	if s.extra.IsValid() {
		sp.Frontends = append(sp.Frontends, frontend(dataplane.ExternalIP, s.extra, p))
	}
	if s.nodePort != 0 {
		at := netip.AddrPortFrom(l.family.Unspecified(), s.nodePort)
		sp.Frontends = append(sp.Frontends, frontend(dataplane.NodePort, at, p))
	}
	return sp
}

// sync applies services in place of all former ones and waits for the pass that
// follows.
func (l *lab) sync(services ...service) conntrack.Pass {
	l.t.Helper()
	l.snap = next(l.t, l.snap, func(b *dataplane.Builder) {
		for sp := range l.snap.ServicePorts() {
			b.Delete(sp.Name)
		}
		for _, s := range services {
			b.Put(l.port(s))
		}
	})
	if _, err := l.plane.Sync(l.t.Context(), dataplane.SyncRequest{Want: l.snap}); err != nil {
		l.t.Fatal(err)
	}
	select {
	case p := <-l.passes:
		if p.Err != nil {
			l.t.Fatalf("pass: %v", p.Err)
		}
		return p
	case <-time.After(10 * time.Second):
		l.t.Fatal("no pass follows the Sync")
	}
	return conntrack.Pass{}
}

// conn is a client that keeps its socket, and so its flow.
type conn struct {
	*net.UDPConn
	l *lab
}

func (l *lab) dial(from *rig.Host, to netip.AddrPort) conn {
	l.t.Helper()
	c, err := from.DialUDP(l.t.Context(), 0, to)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return conn{c, l}
}

// reaches sends one packet and checks who answers: the name of a host, or the
// outcome of a probe without an answer.
func (c conn) reaches(want string) {
	c.l.t.Helper()
	ctx, cancel := context.WithTimeout(c.l.t.Context(), rig.DefaultTimeout)
	defer cancel()
	got := rig.Ask(ctx, c.UDPConn)
	if got.Outcome == rig.Answered && got.Server == want || string(got.Outcome) == want {
		return
	}
	rules, err := c.l.Node.Run(c.l.t.Context(), "nft", "list", "ruleset")
	c.l.t.Fatalf("%s -> %s: %s, want %s\n%s\n%s (%v)", c.LocalAddr(), c.RemoteAddr(), got, want, c.l.list(), rules, err)
}

const (
	refused = string(rig.Refused)
	silent  = string(rig.Silent)
)

// list is the node's table as we read it.
func (l *lab) list() (all []conntrack.Entry) {
	l.t.Helper()
	err := inHost{l.Node}.Dump(l.t.Context(), l.family, func(e conntrack.Entry) bool {
		all = append(all, e)
		return true
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

// entry returns the one entry of a client.
func (c conn) entry() (conntrack.Entry, bool) {
	c.l.t.Helper()
	local := netip.MustParseAddrPort(c.LocalAddr().String())
	all := c.l.list()
	i := slices.IndexFunc(all, func(e conntrack.Entry) bool { return e.Orig.Src.Port() == local.Port() })
	if i < 0 {
		return conntrack.Entry{}, false
	}
	return all[i], true
}

// survives runs f and checks that the client's flow is still the same.
func (c conn) survives(f func()) {
	c.l.t.Helper()
	before, ok := c.entry()
	f()
	if after, still := c.entry(); !ok || !still || before != after {
		c.l.t.Errorf("flow %v (%v) is now %v (%v)", before, ok, after, still)
	}
}

// gone checks that the client's flow was forgotten.
func (c conn) gone() {
	c.l.t.Helper()
	if e, ok := c.entry(); ok {
		c.l.t.Errorf("still there: %s", e)
	}
}

// eachFamily runs a test once for each.
func eachFamily(t *testing.T, f func(*lab)) {
	for _, family := range dataplane.Families() {
		t.Run(family.String(), func(t *testing.T) {
			t.Parallel()
			f(newLab(t, family))
		})
	}
}
