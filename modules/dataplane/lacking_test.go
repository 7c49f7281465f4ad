package dataplane

import (
	"net/netip"
	"testing"
)

func TestLackingKeepSource(t *testing.T) {
	pod := Endpoint{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Weight: 1, Local: true}
	pool := &Pool{Family: IPv4, Endpoints: []Endpoint{pod}}
	v := Verdict{Action: Forward, Pool: pool, node: &Node{}, ServicePort: &ServicePort{Name: ServicePortName{Protocol: TCP}}}
	masqueraded := Explanation{Outcomes: []Outcome{{Action: Forward, Endpoint: pod.Addr, Masqueraded: true}}}
	if v.Agrees(masqueraded) == nil {
		t.Error("a mode that has all capabilities may masquerade")
	}
	if err := v.Lacking([]Capability{KeepSource}).Agrees(masqueraded); err != nil {
		t.Errorf("a mode that cannot keep sources may not masquerade: %v", err)
	}
	if err := v.Lacking([]Capability{KeepFlows}).Agrees(masqueraded); err == nil {
		t.Error("a mode that lacks something else may masquerade")
	}
	masqueraded.Outcomes[0].Masqueraded = false
	if v.Lacking([]Capability{KeepSource}).Agrees(masqueraded) == nil {
		t.Error("a mode has a capability that it says it lacks")
	}
}

func TestLackingForwardSCTP(t *testing.T) {
	pool := &Pool{Family: IPv4, Endpoints: []Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Weight: 1}}}
	refused := Explanation{Outcomes: []Outcome{{Action: Reject}}}
	for _, c := range []struct {
		protocol Protocol
		lacks    []Capability
		legal    bool
	}{
		{SCTP, []Capability{ForwardSCTP}, true},
		{SCTP, []Capability{KeepSource}, false},
		{TCP, []Capability{ForwardSCTP}, false},
	} {
		v := Verdict{Action: Forward, Pool: pool, node: &Node{}, ServicePort: &ServicePort{Name: ServicePortName{Protocol: c.protocol}}}
		if err := v.Lacking(c.lacks).Agrees(refused); (err == nil) != c.legal {
			t.Errorf("%s may be refused by a mode that lacks %v: %v, want %t", c.protocol, c.lacks, err, c.legal)
		}
	}
}
