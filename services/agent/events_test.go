package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/servicecache"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newTestTeller() (*teller, *events.FakeRecorder) {
	r := events.NewFakeRecorder(20)
	return &teller{recorder: r, node: &corev1.ObjectReference{Kind: "Node", Name: "n1"}, failing: make(map[failure]bool)}, r
}

// said returns the Events so far.
func said(r *events.FakeRecorder) []string {
	var list []string
	for {
		select {
		case e := <-r.Events:
			list = append(list, e)
		default:
			return list
		}
	}
}

// TestFailedPortIsToldOnce, for each plane, and again when it comes back.
func TestFailedPortIsToldOnce(t *testing.T) {
	teller, recorder := newTestTeller()
	web := dataplane.ServicePortName{Namespace: "shop", Name: "web", Port: "http", Protocol: dataplane.TCP}
	sync := func(f dataplane.Family, err error, failed ...dataplane.Failure) int {
		teller.synced(dataplane.SyncResult{Plane: dataplane.NamedPlane{Name: f.String()}, Err: err, Report: dataplane.Report{Failed: failed}})
		return len(said(recorder))
	}
	bad := dataplane.Failure{Name: web, Err: errors.New("bad comment")}
	for i, step := range []struct{ have, want int }{
		{sync(v4, nil, bad), 1},
		{sync(v4, nil, bad), 0},
		{sync(v6, nil, bad), 1},
		{sync(v6, nil), 0},
		{sync(v4, errors.New("nothing worked")), 0}, // says nothing about the port
		{sync(v4, nil, bad), 0},
		{sync(v4, nil), 0},
		{sync(v4, nil, bad), 1},
	} {
		if step.have != step.want {
			t.Errorf("step %d: %d Events, want %d", i, step.have, step.want)
		}
	}
}

func TestEventsSayWhatAndWhy(t *testing.T) {
	teller, recorder := newTestTeller()
	web := dataplane.ServiceName{Namespace: "shop", Name: "web"}
	teller.cannotListen(web, netip.MustParseAddrPort("10.0.0.1:31000"), errors.New("address already in use"))
	teller.fellBack(choice{wanted: "ipvs", mode: dataplane.Mode{Name: "iptables"}, because: "no ip_vs"})
	teller.problem(servicecache.Problem{
		Object: servicecache.ObjectRef{Kind: "Service", Name: "web"}, Reason: servicecache.InvalidRange, Field: "spec.loadBalancerSourceRanges", Message: "x is no CIDR",
	})
	teller.problem(servicecache.Problem{Message: "of no object"})
	chains := func(n int) dataplane.SyncResult {
		res := dataplane.SyncResult{Plane: dataplane.NamedPlane{Name: "iptables IPv4"}}
		for i := range n {
			res.Report.Repaired = append(res.Report.Repaired, dataplane.Difference{Object: fmt.Sprintf("nat chain %d", i)})
		}
		return res
	}
	teller.repaired(chains(0))
	teller.repaired(chains(2))
	teller.repaired(chains(7))
	want := []string{
		"Warning FailedToStartServiceHealthcheck healthCheckNodePort at 10.0.0.1:31000: address already in use",
		"Warning ProxyModeFallback The proxy mode ipvs cannot run on this node, iptables is used instead: no ip_vs",
		"Warning InvalidSourceRange spec.loadBalancerSourceRanges: x is no CIDR",
		"Warning ServiceRulesRepaired iptables IPv4: somebody else had changed nat chain 0; nat chain 1",
		"Warning ServiceRulesRepaired iptables IPv4: somebody else had changed nat chain 0; nat chain 1; nat chain 2; nat chain 3; nat chain 4 and 2 more",
	}
	have := said(recorder)
	if len(have) != len(want) {
		t.Fatalf("said %q, want %q", have, want)
	}
	for i := range want {
		if have[i] != want[i] {
			t.Errorf("said %q, want %q", have[i], want[i])
		}
	}
}
