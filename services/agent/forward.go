package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/portway/portway/modules/conntrack"
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/healthcheck"
	"github.com/portway/portway/modules/relay"
	"github.com/portway/portway/modules/servicecache"
	"github.com/portway/portway/services/agent/addresses"
	"github.com/portway/portway/services/agent/config"
)

// ipvsDevice holds the addresses that the ipvs mode binds, of Portway and of
// kube-proxy: they are Services', not the node's.
const ipvsDevice = "kube-ipvs0"

// forward keeps the kernel as the API says until the context ends. To look at the
// machine, and to open the planes, is to wait for programs and the kernel, so the
// API is listed meanwhile.
func (a *agent) forward(ctx context.Context) error {
	cfg := cacheConfig(a.opts, a.node, a.started)
	source, err := a.newSource(cfg)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return source.Run(ctx) })
	g.Go(func() error { return a.keep(ctx, cfg, source) })
	return g.Wait()
}

// settle finds out what the machine can do, waits for the Node and chooses the mode.
func (a *agent) settle(ctx context.Context) (choice, error) {
	if err := a.chooser.check(ctx); err != nil {
		return choice{}, err
	}
	// After check, which had the modules loaded whose settings these are.
	setConntrack(a.machine, a.opts, a.log)
	node, err := awaitNode(ctx, a.client, a.node, a.opts.Proxy.DetectLocalMode == config.NodeCIDR, a.log)
	if err != nil {
		return choice{}, err
	}
	return a.choose(ctx, node)
}

// keep runs what follows the source. Nothing is published before the source is told
// of the machine, which is the last that starts here.
func (a *agent) keep(ctx context.Context, cfg servicecache.Config, source *servicecache.Source) error {
	c, err := a.settle(ctx)
	if err != nil {
		return err
	}
	o, err := a.open(ctx, c)
	if err != nil {
		return err
	}
	defer a.close(o.planes)
	left := a.newLeftovers(c)
	r := a.newReconciler(ctx, o.planes, left)
	watcher, err := addresses.Open(a.log, ipvsDevice)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, cleaner := range o.cleaners {
		g.Go(func() error { cleaner.Run(ctx); return ctx.Err() })
	}
	g.Go(func() error { r.Run(ctx); return ctx.Err() })
	for f := range left.ready {
		g.Go(func() error { left.run(ctx, f); return nil })
	}
	g.Go(func() error {
		return a.serveLocal(ctx, &localAPI{
			reconciler: r, published: &a.published, mode: c.mode, config: cfg,
			local: a.localState, ipvs: a.opts.IPVS(), relaying: o.relaying, reasons: source.Explain, toward: addresses.Toward,
		})
	})
	g.Go(func() error {
		watcher.Run(ctx, func(now []netip.Prefix) {
			l := servicecache.Local{
				Addresses: now, ConntrackLiberal: a.machine.ConntrackLiberal(),
				LoopbackNodePorts: *a.opts.Proxy.IPTables.LocalhostNodePorts && loopbackByDefault(c.mode.Name),
			}
			a.local.Store(&l)
			source.SetLocal(l)
		})
		return ctx.Err()
	})
	return g.Wait()
}

// choose decides on the mode and says so.
func (a *agent) choose(ctx context.Context, node *corev1.Node) (choice, error) {
	families := nodeFamilies(node)
	if ip := config.NodeIP(a.opts.Proxy); ip.IsValid() {
		families = withFamily(families, dataplane.FamilyOf(ip))
	}
	c, err := a.chooser.choose(ctx, node.Annotations[modeAnnotation], families)
	if err != nil {
		return c, err
	}
	a.choice.Store(&c)
	a.metrics.Mode(c.wanted, c.mode.Name)
	a.metrics.Serving(c.families)
	a.health.SetFamilies(c.families)
	a.teller.started()
	a.log.Info("Using proxy mode", "mode", c.mode.Name, "families", fmt.Sprint(c.families))
	if c.fellBack() {
		a.log.Error("This node cannot run the proxy mode that was asked for", "wanted", c.wanted, "using", c.mode.Name, "reason", c.because)
		a.teller.fellBack(c)
	}
	for _, f := range c.families {
		if err := a.machine.CheckForwarding(f); err != nil {
			a.log.Warn("Services will not work for pods and from outside", "err", err)
		}
	}
	return c, nil
}

// opened are the planes, what cleans up their stale UDP flows, and those of them
// that listen.
type opened struct {
	planes   []dataplane.NamedPlane
	cleaners []*conntrack.Cleaner
	relaying []relaying
}

// open makes for each family the plane of the mode, what cleans up its stale
// UDP flows, and the plane that serves NodePorts on loopback in every mode.
func (a *agent) open(ctx context.Context, c choice) (opened, error) {
	var o opened
	for _, f := range c.families {
		p, err := c.mode.Open(ctx, f)
		if err != nil {
			a.close(o.planes)
			return opened{}, err
		}
		if r, ok := p.(relaying); ok {
			o.relaying = append(o.relaying, r)
		}
		cleaner := conntrack.NewCleaner(conntrack.Table{}, f, a.cleaned)
		// Flows to a port that our process relays from are never stale.
		if r, ok := p.(sparing); ok {
			cleaner.Spare(r.Relays)
		}
		loopback := relay.NewLoopback(f, relay.Config{Log: a.log})
		o.cleaners = append(o.cleaners, cleaner)
		o.relaying = append(o.relaying, loopback)
		o.planes = append(o.planes,
			dataplane.NamedPlane{Name: c.mode.Name + " " + f.String(), Family: f, Plane: cleaner.Watch(p)},
			dataplane.NamedPlane{Name: relay.LoopbackName(f), Family: f, Plane: loopback})
	}
	return o, nil
}

// relaying is a plane that listens.
type relaying interface{ Table() []relay.Listening }

// sparing is a plane whose flows, to conntrack, end at ports of this process.
type sparing interface {
	Relays(dataplane.Protocol, netip.AddrPort) bool
}

func (a *agent) close(planes []dataplane.NamedPlane) {
	for _, p := range planes {
		if err := p.Plane.Close(); err != nil {
			a.log.Warn("A plane did not close cleanly", "plane", p.Name, "err", err)
		}
	}
}

func (a *agent) cleaned(p conntrack.Pass) {
	a.metrics.Cleaned(p)
	if p.Err != nil && !errors.Is(p.Err, context.Canceled) {
		a.log.Error("Stale UDP flows could not be deleted; trying again", "family", p.Family.String(), "err", p.Err)
	}
}

// newLeftovers are none where the agent serves the Services of one proxy name:
// there may be a kube-proxy on this node that serves the others, and is alive.
func (a *agent) newLeftovers(c choice) *leftovers {
	modes := a.chooser.modes
	if name := a.opts.Agent.ServiceProxyName; name != "" {
		a.log.Info("What other proxy modes left is not removed: another proxy may be using it", "serviceProxyName", name)
		modes = nil
	}
	l := newLeftovers(modes, c, a.log, a.metrics.GoOn)
	l.looked = trim
	return l
}

func (a *agent) newReconciler(ctx context.Context, planes []dataplane.NamedPlane, left *leftovers) *dataplane.Reconciler {
	sync, minimum := config.SyncPeriod(a.opts.Proxy)
	r := dataplane.NewReconciler(dataplane.ReconcilerConfig{
		Planes: planes, Log: a.log,
		MinPeriod: max(minimum, 1), // 0 would be the default
		Resync:    sync,
		OnSync:    func(res dataplane.SyncResult) { a.synced(ctx, res, left) },
	})
	a.reconciler.Store(r)
	return r
}

// synced is called after each Sync of a plane. Of the one for loopback, whose
// clients are on this node, neither health nor kube-proxy's metrics know.
func (a *agent) synced(ctx context.Context, res dataplane.SyncResult, left *leftovers) {
	a.teller.synced(res)
	a.teller.repaired(res)
	a.metrics.Packets(res)
	if res.Plane.Name == relay.LoopbackName(res.Plane.Family) {
		return
	}
	a.metrics.Synced(res)
	if res.Err == nil {
		a.health.Synced(res.Plane.Family)
		a.services.Sync(ctx, res.Want)
		left.synced(res.Plane.Family)
	}
}

// trim gives memory back after the start of a family: lists of all objects, and all
// rules as a text, do not come again. The runtime would keep what they took for
// minutes, for as many more. From then on there is little to collect, so it is
// collected early: a node's memory is its pods'.
func trim() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	debug.FreeOSMemory()
}

// localState is what this machine says of itself, as far as it has.
func (a *agent) localState() servicecache.Local {
	if l := a.local.Load(); l != nil {
		return *l
	}
	return servicecache.Local{}
}

func (a *agent) newSource(cfg servicecache.Config) (*servicecache.Source, error) {
	if cfg.DetectLocal == servicecache.DetectNone {
		a.log.Warn("detectLocalMode is ClusterCIDR and no clusterCIDR is given: no traffic is known to be from pods")
	}
	return servicecache.NewSource(a.client, cfg, servicecache.Listener{
		Publish: func(s *dataplane.Snapshot) {
			a.published.Store(s)
			a.metrics.Published(s)
			a.reconciler.Load().Publish(s)
		},
		Report: a.teller.problem,
		Came:   a.metrics.Came,
		Node:   func(n servicecache.NodeStatus) { a.health.SetNode(nodeState(n)) },
	}, a.log)
}

func nodeState(n servicecache.NodeStatus) healthcheck.NodeState {
	switch {
	case !n.Known:
		return healthcheck.NodeUnknown
	case n.Deleting:
		return healthcheck.NodeDeleting
	case n.ToBeDeleted:
		return healthcheck.NodeToBeDeleted
	}
	return healthcheck.NodeEligible
}

// serveLocal answers portwayctl. Services do not depend on it, so that it
// cannot is told and no more.
func (a *agent) serveLocal(ctx context.Context, api *localAPI) error {
	if a.opts.Agent.Socket == "" {
		return nil
	}
	l, err := listenLocal(ctx, a.opts.Agent.Socket)
	if err == nil {
		err = serveHTTP(ctx, l, api.handler())
	}
	if err != nil {
		a.log.Error("portwayctl cannot ask this agent", "err", err)
	}
	return nil
}
