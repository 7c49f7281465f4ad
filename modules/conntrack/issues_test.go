package conntrack_test

import (
	"net/netip"
	"testing"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// Each test is a public report: what a client with one socket lived through.

type translations = map[netip.AddrPort]netip.AddrPort

var nowhere netip.AddrPort

// TestIssue19029EndpointReplaced: a client that keeps its socket follows the
// Service to its new endpoint, and flows to an endpoint that stays do not move.
// Proves S7.3, kubernetes#19029.
func TestIssue19029EndpointReplaced(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		l.rules(translations{l.vip(): e1, l.ext(): e2})
		l.sync(service{name: "s", clusterIP: l.vip(), extra: l.ext(), serving: []netip.AddrPort{e1, e2}, usable: []netip.AddrPort{e1, e2}})
		moves, stays := l.dial(l.Client, l.vip()), l.dial(l.Client, l.ext())
		moves.reaches("e1")
		stays.reaches("e2")

		l.rules(translations{l.vip(): e2, l.ext(): e2})
		moves.reaches("e1") // rules alone do not help
		stays.survives(func() {
			l.sync(service{name: "s", clusterIP: l.vip(), extra: l.ext(), serving: []netip.AddrPort{e2}, usable: []netip.AddrPort{e2}})
		})
		moves.reaches("e2")
		stays.reaches("e2")
	})
}

// TestIssue48370FromNoneToOne: a client that sends before there is any
// endpoint, and before there is any rule, gets through once there is one.
// Proves S7.4, kubernetes#48370.
func TestIssue48370FromNoneToOne(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1 := l.ep(l.Endpoints[0])
		c := l.dial(l.Client, l.vip())
		c.reaches(silent) // the agent has not started yet
		l.rules(translations{l.vip(): nowhere})
		l.sync(service{name: "s", clusterIP: l.vip()})

		l.rules(translations{l.vip(): e1})
		c.reaches(silent) // rules alone do not help
		l.sync(service{name: "s", clusterIP: l.vip(), serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}})
		c.reaches("e1")
	})
}

// TestIssue105657ReadyLater: the endpoint is there before it is ready. The pass
// that counts is the one after it became usable.
// Proves S7.4, kubernetes#105657.
func TestIssue105657ReadyLater(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1 := l.ep(l.Endpoints[0])
		c := l.dial(l.Client, l.vip())
		c.reaches(silent)
		c.survives(func() { l.sync(service{name: "s", clusterIP: l.vip()}) })
		l.rules(translations{l.vip(): e1})
		l.sync(service{name: "s", clusterIP: l.vip(), serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}})
		c.reaches("e1")
	})
}

// TestIssue139628FromOneToNone: a sender that never stops is refused once the
// last endpoint is gone.
// Proves S7.3, kubernetes#139628.
func TestIssue139628FromOneToNone(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1 := l.ep(l.Endpoints[0])
		l.rules(translations{l.vip(): e1})
		l.sync(service{name: "s", clusterIP: l.vip(), serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}})
		c := l.dial(l.Client, l.vip())
		c.reaches("e1")
		l.rules(translations{l.vip(): nowhere})
		c.reaches("e1") // rules alone do not help
		l.sync(service{name: "s", clusterIP: l.vip()})
		c.reaches(refused)
	})
}

// TestPR141371ServiceDeleted, or a part of it: no flow leads on to a pod whose
// address may soon be another's.
// Proves S7.5, kubernetes#141371.
func TestPR141371ServiceDeleted(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1 := l.ep(l.Endpoints[0])
		l.rules(translations{l.vip(): e1, l.ext(): e1, l.nodePort(): e1})
		whole := service{name: "s", clusterIP: l.vip(), extra: l.ext(), nodePort: nodePort, serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}}
		moved, bare, inner := whole, whole, whole
		moved.nodePort++
		bare.nodePort = 0
		inner.extra = nowhere
		for _, c := range []struct {
			name  string
			after []service
			gone  []netip.AddrPort
			kept  []netip.AddrPort
		}{
			{"the Service", nil, []netip.AddrPort{l.vip(), l.ext(), l.nodePort()}, nil},
			{"its NodePort changes", []service{moved}, []netip.AddrPort{l.nodePort()}, []netip.AddrPort{l.vip(), l.ext()}},
			{"its NodePort", []service{bare}, []netip.AddrPort{l.nodePort()}, []netip.AddrPort{l.vip(), l.ext()}},
			{"its externalIP", []service{inner}, []netip.AddrPort{l.ext()}, []netip.AddrPort{l.vip(), l.nodePort()}},
		} {
			l.sync(whole)
			clients := make(map[netip.AddrPort]conn)
			for _, at := range append(c.gone, c.kept...) {
				clients[at] = l.dial(l.Client, at)
				clients[at].reaches("e1")
			}
			l.sync(c.after...)
			for _, at := range c.gone {
				clients[at].gone()
			}
			for _, at := range c.kept {
				clients[at].survives(func() { clients[at].reaches("e1") })
			}
		}
	})
}

// TestIssue126934LocalPolicy: the only endpoint of this node is replaced, while
// the Service as a whole never was without.
// Proves S7.4, kubernetes#126934.
func TestIssue126934LocalPolicy(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, remote := l.ep(l.Endpoints[0]), l.ep(l.Remote)
		c := l.dial(l.Client, l.vip())
		c.reaches(silent)
		l.rules(translations{l.vip(): nowhere})
		c.survives(func() { l.sync(service{name: "s", clusterIP: l.vip(), serving: []netip.AddrPort{remote}}) })
		l.rules(translations{l.vip(): e1})
		l.sync(service{name: "s", clusterIP: l.vip(), serving: []netip.AddrPort{e1, remote}, usable: []netip.AddrPort{e1}})
		c.reaches("e1")
	})
}

// TestIssue122740RestartKeepsFlows: to a fresh agent everything is new, and
// nothing is stale for that.
// Proves S7.6, kubernetes#122740.
func TestIssue122740RestartKeepsFlows(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		both := service{name: "s", clusterIP: l.vip(), nodePort: nodePort, serving: []netip.AddrPort{e1, e2}, usable: []netip.AddrPort{e1, e2}}
		l.rules(translations{l.vip(): e1, l.nodePort(): e2})
		l.sync(both)
		c, outside := l.dial(l.Client, l.vip()), l.dial(l.Up, l.nodePort())
		c.reaches("e1")
		outside.reaches("e2")
		for range 3 {
			l.restartAgent()
			c.survives(func() { outside.survives(func() { l.sync(both) }) })
		}
		c.reaches("e1")
		outside.reaches("e2")
	})
}

// TestIssue125467ChangedWhileAway: the endpoint is replaced, and a Service is
// deleted, while no agent runs. There never is an event; the first pass tells.
// Proves S7.5, kubernetes#125467.
func TestIssue125467ChangedWhileAway(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1, e2 := l.ep(l.Endpoints[0]), l.ep(l.Endpoints[1])
		l.rules(translations{l.vip(): e1, l.ext(): e1})
		l.sync(
			service{name: "swapped", clusterIP: l.vip(), serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}},
			service{name: "deleted", clusterIP: l.ext(), serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}},
		)
		swapped, deleted := l.dial(l.Client, l.vip()), l.dial(l.Client, l.ext())
		swapped.reaches("e1")
		deleted.reaches("e1")

		l.restartAgent()
		l.snap = snapshot(t)
		l.rules(translations{l.vip(): e2})
		// What was there before is known from the rules that the plane finds.
		l.report = dataplane.Report{Full: true, Removed: []dataplane.FrontendKey{key(l.ext())}}
		l.sync(service{name: "swapped", clusterIP: l.vip(), serving: []netip.AddrPort{e2}, usable: []netip.AddrPort{e2}})
		swapped.reaches("e2")
		deleted.gone()
		deleted.reaches(silent)
	})
}

// TestFelix2588NodePortOfAnotherNode: a flow that only passes through to the
// NodePort of another node is that node's, whatever the same NodePort means
// here; also where both translate to an endpoint that this node's Service has
// not.
// Proves S7.6, felix#2588.
func TestFelix2588NodePortOfAnotherNode(t *testing.T) {
	eachFamily(t, func(l *lab) {
		e1 := l.ep(l.Endpoints[0])
		elsewhere := l.nodePortAt(l.Node2)
		l.Node2.Serve(t, rig.UDP, nodePort) // stands for what that node does
		svc := service{name: "s", clusterIP: l.vip(), nodePort: nodePort, serving: []netip.AddrPort{e1}, usable: []netip.AddrPort{e1}}
		l.rules(translations{l.nodePort(): e1})
		l.sync(svc)
		here, passing := l.dial(l.Up, l.nodePort()), l.dial(l.Client, elsewhere)
		here.reaches("e1")
		passing.reaches("node2")
		passing.survives(func() { here.survives(func() { l.restartAgent(); l.sync(svc) }) })
		passing.survives(func() { l.sync() })
		here.gone()
	})
}
