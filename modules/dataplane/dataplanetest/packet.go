package dataplanetest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// arrival is the rule that a packet is judged by: what must happen to it, and
// what the mode cannot do.
type arrival struct {
	want       *dataplane.Snapshot
	keepSource bool
}

// check says how the end of a real packet differs from what must happen.
func (a arrival) check(s Shot, got rig.Result) error {
	v := a.want.Decide(s.Flow)
	var err error
	switch v.Action {
	case dataplane.Forward:
		err = a.checkForward(v, s, got)
	case dataplane.Reject:
		err = wantOutcome(rig.Refused, got)
	case dataplane.Drop:
		err = wantOutcome(rig.Silent, got)
	default:
		err = checkBystander(s, got)
	}
	if err != nil {
		return fmt.Errorf("%s: should %s, but %w", s, v, err)
	}
	return nil
}

func wantOutcome(want rig.Outcome, got rig.Result) error {
	if got.Outcome != want {
		return fmt.Errorf("it is %s", got)
	}
	return nil
}

func (a arrival) checkForward(v dataplane.Verdict, s Shot, got rig.Result) error {
	if got.Outcome != rig.Answered {
		return fmt.Errorf("it is %s", got)
	}
	ep, ok := v.Endpoint(got.Local)
	if !ok {
		return fmt.Errorf("it is %s, which is no endpoint of %v", got, v.Pool.Endpoints)
	}
	masqueraded := a.want.Node().Holds(got.Source.Addr())
	kept := got.Source.Addr() == s.Flow.Src.Addr()
	want := v.MasqueradeTo(ep)
	if want == dataplane.MasqueradeNo && !a.keepSource {
		want = dataplane.MasqueradeYes
	}
	switch {
	case want == dataplane.MasqueradeYes && !masqueraded:
		return fmt.Errorf("the source is not masqueraded: %s", got)
	case want == dataplane.MasqueradeNo && !kept:
		return fmt.Errorf("the source is not kept: %s", got)
	case !masqueraded && !kept:
		return fmt.Errorf("the source is neither kept nor masqueraded: %s", got)
	}
	return nil
}

// checkBystander judges a flow that is not for a proxy: it ends where the rig's
// own routes lead.
func checkBystander(s Shot, got rig.Result) error {
	host, known := hostOf(s.Flow.Dst.Addr())
	switch {
	case !known:
		return wantOutcome(rig.Silent, got)
	case !s.Flow.Protocol.HasPorts():
		return wantOutcome(rig.Answered, got)
	case !serves(host, s.Flow.Dst.Port()):
		return wantOutcome(rig.Refused, got)
	case got.Outcome != rig.Answered || got.Local != s.Flow.Dst || got.Source.Addr() != s.Flow.Src.Addr():
		return fmt.Errorf("it is %s", got)
	}
	return nil
}

// answers tells whether a flow with that verdict reaches a server.
func answers(v dataplane.Verdict, s Shot) bool {
	if v.Action != dataplane.NotOurs {
		return v.Action == dataplane.Forward
	}
	host, known := hostOf(s.Flow.Dst.Addr())
	return known && (!s.Flow.Protocol.HasPorts() || serves(host, s.Flow.Dst.Port()))
}

// hostOf finds the host of a rig that has an address.
func hostOf(a netip.Addr) (name string, ok bool) {
	for _, name := range []string{"node", "node2", "up", "c", "e1", "e2", "remote"} {
		v4, v6, err := rig.Addrs(name)
		if err == nil && (a == v4 || a == v6) {
			return name, true
		}
	}
	return "node", a == rig.Alias4 || a == rig.Alias6
}

// backends are the hosts that serve, each on all target ports.
var backends = []string{"e1", "e2", "remote", "node", "node2"}

func serves(host string, port uint16) bool {
	return slices.Contains(backends, host) && slices.Contains(targetPorts, port)
}

// returns tells whether the replies of a flow pass the node under test: from an
// endpoint elsewhere to a client elsewhere, whose address it knows, they do not,
// and no rule on this node can help.
func returns(v dataplane.Verdict, s Shot) bool {
	if v.Action != dataplane.Forward || s.From == "node" || isPod(s.From) {
		return true
	}
	return !slices.ContainsFunc(v.Pool.Endpoints, func(e dataplane.Endpoint) bool {
		return !e.Local && v.MasqueradeTo(e) != dataplane.MasqueradeYes
	})
}

// fire sends all shots at once, each as a new flow, and returns where they end.
func fire(ctx context.Context, r *rig.Rig, shots []Shot, timeout time.Duration) []rig.Result {
	results := make([]rig.Result, len(shots))
	rig.Each(len(shots), func(i int) { results[i] = send(ctx, r, shots[i], timeout) })
	return results
}

func send(ctx context.Context, r *rig.Rig, s Shot, timeout time.Duration) rig.Result {
	from := r.Host(s.From)
	probe := rig.Probe{From: from, To: s.Flow.Dst, Source: netip.AddrPortFrom(netip.Addr{}, s.SourcePort), Timeout: timeout}
	switch s.Flow.Protocol {
	case dataplane.TCP:
		probe.Proto = rig.TCP
		return probe.Send(ctx)
	case dataplane.UDP:
		probe.Proto = rig.UDP
		return probe.Send(ctx)
	default:
		return from.Ping(ctx, s.Flow.Dst.Addr(), timeout)
	}
}
