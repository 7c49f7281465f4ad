package iptables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/netfilter/netfiltertest"
	"github.com/portway/portway/modules/netfilter/program"
)

// recorder notes what is written, as text.
type recorder struct {
	netfilter.Kernel
	writes []string
}

func (k *recorder) Restore(ctx context.Context, tx netfilter.Transaction) error {
	k.writes = append(k.writes, tx.String())
	return k.Kernel.Restore(ctx, tx)
}

// first is the number of the first write in which a text occurs.
func (k *recorder) first(text string) int {
	return slices.IndexFunc(k.writes, func(w string) bool { return strings.Contains(w, text) })
}

// kubernetes#133773: what the node needs to come up is there first, and nothing
// is refused before everything is known.
// Proves S1.11.
func TestColdStartHasAnOrder(t *testing.T) {
	api := clusterIP("kubernetes", "10.96.0.100:443", endpoints("192.168.77.1:6443"))
	api.Priority = dataplane.PriorityAPIServer
	dns := clusterIP("kube-dns", "10.96.0.101:53", endpoints("10.244.2.3:53"))
	dns.Priority = dataplane.PriorityDNS
	k := &recorder{Kernel: netfiltertest.New(dataplane.IPv4)}
	p := fakePlane(k)
	want := snapshotOf(t, append(many(20), api, dns)...)
	mustSync(t, p, want, time.Time{}, false)
	order := []struct {
		what string
		at   int
	}{
		{"masquerading", k.first("-j MASQUERADE")},
		{"the API server", k.first("--to-destination 192.168.77.1:6443")},
		{"DNS", k.first("--to-destination 10.244.2.3:53")},
		{"other Services", k.first("default/service-7 ")},
		{"the refusal of unknown ports", k.first("--match-set KUBE-IPT-CLUSTER-IP")},
	}
	for i, o := range order {
		if o.at < 0 || i > 0 && o.at < order[i-1].at {
			t.Errorf("%s comes in write %d, after %s in %d", o.what, o.at, order[max(i-1, 0)].what, order[max(i-1, 0)].at)
		}
	}
	if order[3].at == order[2].at || order[4].at == order[3].at {
		t.Errorf("all come at once: %v", order)
	}
	if r := mustSync(t, p, want, time.Time{}, true); r.Writes != 0 {
		t.Errorf("the next Sync writes %d", r.Writes)
	}
}

// kubernetes#74839: what conntrack calls invalid is not forwarded, unless the
// kernel is told to be liberal.
// Proves S3.13.
func TestInvalidIsNotForwarded(t *testing.T) {
	for _, drop := range []bool{true, false} {
		p := fakePlane(netfiltertest.New(dataplane.IPv4))
		n := testNode()
		n.DropInvalid = drop
		b := snapshotOf(t).Edit()
		b.SetNode(n)
		mustSync(t, p, built(t, b), time.Time{}, false)
		w, err := netfilter.ReadWalker(t.Context(), p.program.Kernel)
		if err != nil {
			t.Fatal(err)
		}
		reply := netfilter.Packet{
			Source: netip.MustParseAddrPort("10.244.1.11:8080"), Destination: netip.MustParseAddrPort("203.0.113.7:40000"),
			Protocol: dataplane.TCP, In: "vethe1", States: netfilter.StateInvalid,
		}
		ends, err := w.Follow(reply)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range ends {
			if (o.Verdict == netfilter.Dropped) != drop {
				t.Errorf("with DropInvalid %t: verdict %d", drop, o.Verdict)
			}
		}
	}
}

// A node whose addresses or pod range change gets other rules, and Services are
// translated again only if origins are told apart in another way.
// Proves S5.4.
func TestNodeChanges(t *testing.T) {
	k := &recorder{Kernel: netfiltertest.New(dataplane.IPv4)}
	p := fakePlane(k)
	want := snapshotOf(t, append(many(8), loadBalancer(t, endpoints("10.244.2.11:8080"), nil, false))...)
	mustSync(t, p, want, time.Time{}, false)
	change := func(edit func(*dataplane.Node)) {
		t.Helper()
		n := testNode()
		edit(n)
		b := want.Edit()
		b.SetNode(n)
		want = built(t, b)
		k.writes = nil
		mustSync(t, p, want, time.Time{}, false)
		if found, err := p.Audit(t.Context(), want); err != nil || len(found) > 0 {
			t.Fatalf("audit finds %v, %v", found, err)
		}
	}
	change(func(n *dataplane.Node) { n.NodePortAddrs = append(n.NodePortAddrs, rig.Alias4) })
	if len(k.writes) != 0 {
		t.Errorf("one address more writes rules: %s", k.writes)
	}
	change(func(n *dataplane.Node) { n.Mark = 1 << 20 })
	if k.first("KUBE-SVC-") >= 0 || k.first("0x100000/0x100000") < 0 {
		t.Errorf("another mark writes %s", k.writes)
	}
	change(func(n *dataplane.Node) { n.DropUnallocated = true })
	if k.first("-d 10.96.0.0/16 ") < 0 {
		t.Errorf("dropping unallocated addresses writes %s", k.writes)
	}
	change(func(n *dataplane.Node) { n.Detectors[0].Prefix = netip.MustParsePrefix("10.128.0.0/9") })
	if k.first("KUBE-SVC-") >= 0 || k.first("! -s 10.128.0.0/9") < 0 {
		t.Errorf("another range of pods writes %s", k.writes)
	}
}

// What all Services share fails for a reason of its own: the search ends.
func TestSearchForCulpritsIsBounded(t *testing.T) {
	k := &picky{Kernel: netfiltertest.New(dataplane.IPv4), hates: "-p tcp -j DNAT", talkative: true}
	p := fakePlane(k)
	_, err := p.Sync(t.Context(), dataplane.SyncRequest{Want: snapshotOf(t, many(program.MaxRefusals+50)...)})
	if !errors.Is(err, program.ErrTooManyRefused) {
		t.Errorf("error %v", err)
	}
	if k.refusals > program.MaxRefusals+1 {
		t.Errorf("%d attempts", k.refusals)
	}
}

func TestProbe(t *testing.T) {
	onSites(t, rig.Options{}, func(s *site) {
		before := s.dump()
		if err := s.Node.Do(func() error { return Mode(Options{Backend: s.backend}).Probe(s.Context(), s.family) }); err != nil {
			s.Error(err)
		}
		if after := s.dump(); strings.Contains(after, "PORTWAY") || strings.Contains(after, "KUBE") {
			s.Errorf("the probe leaves\n%s\nof\n%s", after, before)
		}
	})
}

func TestProbeSaysWhatIsMissing(t *testing.T) {
	if err := Mode(Options{Backend: "ebtables"}).Probe(t.Context(), dataplane.IPv4); err == nil || !strings.Contains(err.Error(), "nft and legacy") {
		t.Errorf("an unknown back end: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := Mode(Options{}).Probe(t.Context(), dataplane.IPv4); err == nil || !strings.Contains(err.Error(), "install the package iptables") {
		t.Errorf("without iptables: %v", err)
	}
}
