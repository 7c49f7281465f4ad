package ipvs

import (
	"bufio"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
)

// outlived is a node on which something else has taken over from the mode.
type outlived struct {
	*testing.T
	*rig.Rig
	vip netip.AddrPort
}

// inNode does something on the node.
func (o *outlived) inNode(f func() error) {
	o.Helper()
	if err := o.Node.Do(f); err != nil {
		o.Fatal(err)
	}
}

// sync programs one Service, of the first endpoint.
func (o *outlived) sync() {
	o.Helper()
	pool := &dataplane.Pool{Family: dataplane.IPv4, Endpoints: []dataplane.Endpoint{
		{Addr: netip.AddrPortFrom(o.Endpoints[0].Addr4, 8080), Weight: 1},
	}}
	to := dataplane.Route{Action: dataplane.Forward, Pool: pool, Masquerade: dataplane.MasqueradeYes}
	sp := &dataplane.ServicePort{
		Name:  dataplane.ServicePortName{Namespace: "shop", Name: "web", Protocol: dataplane.TCP},
		Pools: []*dataplane.Pool{pool},
		Frontends: []*dataplane.Frontend{
			{Family: dataplane.IPv4, Addr: o.vip.Addr(), Port: o.vip.Port(), Routes: [3]dataplane.Route{to, to, to}},
		},
	}
	want := snapshot(o.T, dataplane.Empty(), with(sp))
	o.inNode(func() error {
		p, err := Options{Backend: netfilter.Legacy}.open(o.Context(), dataplane.IPv4)
		if err != nil {
			return err
		}
		defer p.Close()
		_, err = p.Sync(o.Context(), dataplane.SyncRequest{Now: time.Now(), Want: want})
		return err
	})
}

// takeOver is all that another mode does for the Service: to the second endpoint.
func (o *outlived) takeOver() {
	o.Helper()
	match := fmt.Sprintf("-d %s/32 -p tcp --dport %d -j DNAT --to-destination %s:8080", o.vip.Addr(), o.vip.Port(), o.Endpoints[1].Addr4)
	rules := "*nat\n-I PREROUTING " + match + "\n-I OUTPUT " + match +
		fmt.Sprintf("\n-I POSTROUTING -s %s/32 -j MASQUERADE\nCOMMIT\n", o.vip.Addr())
	if _, err := o.Node.RunInput(o.Context(), rules, "iptables-legacy-restore", "--noflush"); err != nil {
		o.Fatal(err)
	}
}

func (o *outlived) retire(age time.Duration) (flows int) {
	o.Helper()
	o.inNode(func() (err error) {
		flows, err = Options{}.retire(o.Context(), dataplane.Retirement{Family: dataplane.IPv4, Age: age})
		return err
	})
	return flows
}

// hold opens a connection that stays, and returns what says something through it.
func (o *outlived) hold(from *rig.Host) (echo func() error) {
	o.Helper()
	conn, err := from.Dial(o.Context(), rig.TCP, netip.AddrPort{}, o.vip)
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() { conn.Close() })
	reader := bufio.NewReader(conn)
	if who, err := reader.ReadString('\n'); err != nil || !strings.HasPrefix(who, o.Endpoints[0].Name+" ") {
		o.Fatalf("%s reaches %q, %v", from.Name, who, err)
	}
	return func() error {
		if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(conn, "still there?"); err != nil {
			return err
		}
		_, err := reader.ReadString('\n')
		return err
	}
}

// Connections through IPVS go on when another mode has taken over, new ones go its
// way, and the node answers at the ClusterIP no more than before. Afterwards
// nothing is left.
// Proves S7.9.
func TestConnectionsOutliveTheMode(t *testing.T) {
	config(t)
	o := &outlived{T: t, Rig: rig.New(t, rig.Options{}), vip: netip.MustParseAddrPort("10.96.0.10:80")}
	for _, e := range o.Endpoints[:2] {
		e.Serve(t, rig.TCP, 8080)
	}
	o.Node.Serve(t, rig.TCP, 2222) // a daemon
	clean := o.state()
	o.sync()
	senders := []*rig.Host{o.Client, o.Node}
	echo := make(map[*rig.Host]func() error)
	for _, from := range senders {
		echo[from] = o.hold(from)
	}
	o.takeOver()
	if n := o.retire(0); n != len(senders) {
		t.Errorf("%d connections go on, want %d", n, len(senders))
	}
	for _, from := range senders {
		if err := echo[from](); err != nil {
			t.Errorf("the connection of %s has ended: %v", from.Name, err)
		}
		if r := (rig.Probe{From: from, Proto: rig.TCP, To: o.vip}).Send(t.Context()); r.Server != o.Endpoints[1].Name {
			t.Errorf("a new one of %s: %s, want %s", from.Name, r, o.Endpoints[1].Name)
		}
		daemon := netip.AddrPortFrom(o.vip.Addr(), 2222)
		if r := (rig.Probe{From: from, Proto: rig.TCP, To: daemon}).Send(t.Context()); r.Outcome != rig.Refused {
			t.Errorf("the node's daemon at the ClusterIP, from %s: %s", from.Name, r)
		}
	}
	if n := o.retire(defaultDrain); n != 0 {
		t.Errorf("after all the time %d connections go on", n)
	}
	for _, from := range senders {
		if err := echo[from](); err == nil {
			t.Errorf("the connection of %s goes on without end", from.Name)
		}
	}
	if got := o.state(); got != clean {
		t.Errorf("there is\n%s\nand was\n%s", got, clean)
	}
}

// state is what the node has of the mode.
func (o *outlived) state() string {
	o.Helper()
	out, err := o.Node.Run(o.Context(), "sh", "-c",
		"iptables-legacy-save | grep KUBE; ipset list -n; ip route show table local proto 86; ip link show kube-ipvs0; sysctl net.ipv4.vs.conntrack; grep -E 'TCP|UDP' /proc/net/ip_vs; true")
	if err != nil {
		o.Fatal(err)
	}
	return out
}
