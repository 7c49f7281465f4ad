package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/healthcheck"
	"github.com/portway/portway/modules/servicecache"
	"github.com/portway/portway/services/agent/config"
	"github.com/portway/portway/services/agent/kernel"
	"github.com/portway/portway/services/agent/metrics"
)

// agent is one running agent. What is found out in the course of its start is
// in atomic pointers, because its servers answer before that.
type agent struct {
	opts     *config.Options
	log      *slog.Logger
	node     string // the Node's name
	client   kubernetes.Interface
	machine  kernel.Machine
	chooser  *chooser
	teller   *teller
	metrics  *metrics.Metrics
	health   *healthcheck.Proxy
	services *healthcheck.Servers // for healthCheckNodePorts

	started    time.Time
	choice     atomic.Pointer[choice]
	reconciler atomic.Pointer[dataplane.Reconciler]
	published  atomic.Pointer[dataplane.Snapshot]
	local      atomic.Pointer[servicecache.Local]
}

// Run is the life of the agent on this machine. It ends without an error when
// the context does, and leaves the node forwarding.
func Run(ctx context.Context, opts *config.Options, modes []dataplane.Mode, log *slog.Logger) error {
	machine := kernel.Machine{Root: "/"}
	if opts.InitOnly {
		return initialize(ctx, opts, modes, machine, log)
	}
	if err := machine.SetOOMScore(*opts.Proxy.OOMScoreAdj); err != nil {
		log.Warn("This process may be killed earlier than was asked for", "err", err)
	}
	node, err := opts.NodeName()
	if err != nil {
		return err
	}
	client, err := newClient(opts)
	if err != nil {
		return err
	}
	a := &agent{opts: opts, log: log, node: node, client: client, machine: machine, started: time.Now()}
	a.chooser = newChooser(opts, modes, machine, log)
	if err := a.prepare(ctx); err != nil {
		return err
	}
	log.Info("Starting", "version", Version(), "node", node)
	return a.run(ctx)
}

// prepare makes the parts that tell how the others do.
func (a *agent) prepare(ctx context.Context) (err error) {
	if a.teller, err = newTeller(ctx, a.client, a.node); err != nil {
		return err
	}
	sync, _ := config.SyncPeriod(a.opts.Proxy)
	a.metrics = metrics.New(Version(), a.unapplied)
	a.metrics.WatchClient()
	a.health = healthcheck.NewProxy(healthcheck.Config{
		SyncPeriod: sync, Families: dataplane.Families(), Unapplied: a.unappliedIn, Answered: a.answered,
	})
	a.services = healthcheck.NewServers(a.health.Live, a.teller.cannotListen)
	return nil
}

// run is everything from then on, until the context ends.
func (a *agent) run(ctx context.Context) error {
	g, running := errgroup.WithContext(ctx)
	for _, s := range a.servers() {
		g.Go(func() error { return s.run(running) })
	}
	g.Go(func() error { return a.forward(running) })
	g.Go(func() error { return a.awaitConfig(running) })
	err := g.Wait()
	// Whoever asks for a Service's health must not take this node for one that
	// keeps up.
	a.services.Sync(context.WithoutCancel(ctx), dataplane.Empty())
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		a.log.Info("Stopped; what is programmed stays")
		return nil
	}
	return err
}

// answered counts an answer of /healthz or /livez on the health port.
func (a *agent) answered(path string, code int) {
	a.metrics.Answered(path, code)
	metrics.ObserveHealth(context.Background(), "proxy", path, code == http.StatusOK)
}

// configPoll is how often the configuration file is looked at.
const configPoll = 5 * time.Second

// awaitConfig ends the agent when its configuration has changed, so that it is
// started with the new one.
func (a *agent) awaitConfig(ctx context.Context) error {
	names := ModeNames(a.chooser.modes)
	return a.opts.AwaitChange(ctx, config.Watch{
		Every: configPoll,
		Valid: func(c *v1alpha1.KubeProxyConfiguration) error { return config.Validate(c, names).ToAggregate() },
		Refused: func(err error) {
			a.log.Error("The changed configuration is not used", "err", err)
		},
	})
}

// unapplied returns since when a change has been waiting. Before the first
// snapshot there is none.
func (a *agent) unapplied() (time.Time, bool) {
	r := a.reconciler.Load()
	if r == nil {
		return time.Time{}, false
	}
	return r.Unapplied()
}

func (a *agent) unappliedIn(f dataplane.Family) (time.Time, bool) {
	r := a.reconciler.Load()
	if r == nil {
		return time.Time{}, false
	}
	return r.UnappliedIn(f)
}

func (a *agent) servers() []*server {
	cfg := a.opts.Proxy
	status := statusHandler(a.metrics.Handler(), &a.choice, cfg)
	return []*server{
		{
			what: "/healthz and /livez", addr: cfg.HealthzBindAddress, hardFail: cfg.BindAddressHardFail,
			serve: a.health.Serve, failed: a.teller.serverFailed, log: a.log,
		},
		{
			what: "/metrics", addr: cfg.MetricsBindAddress, hardFail: cfg.BindAddressHardFail,
			serve:  func(ctx context.Context, l net.Listener) error { return serveHTTP(ctx, l, status) },
			failed: a.teller.serverFailed, log: a.log,
		},
	}
}
