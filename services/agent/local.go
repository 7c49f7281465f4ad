package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/answer"
	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/modules/relay"
	"github.com/portway/portway/modules/servicecache"
)

// localAPI answers portwayctl on a unix socket.
type localAPI struct {
	reconciler *dataplane.Reconciler
	published  *atomic.Pointer[dataplane.Snapshot]
	mode       dataplane.Mode // what it lacks explains why it does otherwise
	config     servicecache.Config
	local      func() servicecache.Local
	ipvs       ipvs.Options // of that mode
	relaying   []relaying
	// reasons says why a verdict is as it is; false if nobody knows any more.
	reasons func(context.Context, dataplane.Verdict) (dataplane.Reasons, bool, error)
	// toward says by which device the node reaches an address.
	toward func(netip.Addr) (string, error)
}

// listenLocal makes the socket, for root alone. One that a process before us
// left is replaced.
func listenLocal(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("local API: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("local API: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("local API: %w", err)
	}
	// Until then the socket is as the umask says; that others might connect
	// meanwhile gives them nothing that they could change.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("local API: %w", err), l.Close())
	}
	return l, nil
}

func (a *localAPI) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /explain", a.explain)
	mux.HandleFunc("GET /audit", a.audit)
	mux.HandleFunc("POST /resync", a.resync)
	mux.HandleFunc("GET /snapshot", a.snapshot)
	mux.HandleFunc("GET /services/{namespace}/{name}", a.service)
	mux.HandleFunc("GET /node", a.node)
	mux.HandleFunc("GET /relay", a.relay)
	return mux
}

// noSnapshot is why nothing is known yet.
const noSnapshot = "there is no snapshot yet: the API server's first lists are not complete"

// explain reads the parameters proto (tcp), src, dst and iface. The port of src
// may be left out, and src itself for a flow that the node sends.
func (a *localAPI) explain(w http.ResponseWriter, r *http.Request) {
	s := a.published.Load()
	if s == nil {
		http.Error(w, noSnapshot, http.StatusServiceUnavailable)
		return
	}
	q := r.URL.Query()
	query := answer.Query{Protocol: q.Get("proto"), Source: q.Get("src"), Destination: q.Get("dst"), Interface: q.Get("iface")}
	flow, err := query.Flow(s.Node(), a.toward)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	planes, err := a.reconciler.Explain(r.Context(), flow)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	e := answer.Explanation{Flow: flow.String(), Planes: make([]answer.Plane, 0, len(planes))}
	for _, p := range planes {
		// NodePorts on loopback have a plane of their own; each of the two
		// knows nothing of the other's flows.
		if loopback := relay.LoopbackName(dataplane.FamilyOf(flow.Dst.Addr())); (p.Plane == loopback) == flow.Dst.Addr().IsLoopback() {
			e.Planes = append(e.Planes, a.explained(r.Context(), p))
		}
	}
	writeJSON(w, e)
}

// explained adds the reasons, if the cache still has the verdict's Service.
func (a *localAPI) explained(ctx context.Context, p dataplane.PlaneExplanation) answer.Plane {
	if p.Verdict.ServicePort == nil {
		return answer.Explain(p, a.mode.Lacks, nil)
	}
	why, ok, err := a.reasons(ctx, p.Verdict)
	if err == nil && ok {
		return answer.Explain(p, a.mode.Lacks, &why)
	}
	e := answer.Explain(p, a.mode.Lacks, nil)
	e.Notes = append(e.Notes, "the Service has changed since: why its endpoints were chosen is not known any more")
	return e
}

func (a *localAPI) audit(w http.ResponseWriter, r *http.Request) {
	audits, err := a.reconciler.Audit(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	all := answer.Audit{Planes: make([]answer.PlaneAudit, 0, len(audits))}
	for _, p := range audits {
		all.Planes = append(all.Planes, answer.Differences(p.Plane, p.Differences, p.Err))
	}
	writeJSON(w, all)
}

// resync repairs what differs and tells what that was.
func (a *localAPI) resync(w http.ResponseWriter, r *http.Request) {
	results, err := a.reconciler.Repair(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	all := answer.Audit{Planes: make([]answer.PlaneAudit, 0, len(results))}
	for _, res := range results {
		all.Planes = append(all.Planes, answer.Differences(res.Plane.Name, res.Report.Repaired, res.Err))
	}
	writeJSON(w, all)
}

// service tells the ports and ClusterIPs of a Service.
func (a *localAPI) service(w http.ResponseWriter, r *http.Request) {
	s := a.published.Load()
	if s == nil {
		http.Error(w, noSnapshot, http.StatusServiceUnavailable)
		return
	}
	name := dataplane.ServiceName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	writeJSON(w, answer.Ports(s, name))
}

// node tells what, besides the API's objects, decides what must happen here:
// enough to decide it again elsewhere.
func (a *localAPI) node(w http.ResponseWriter, _ *http.Request) {
	told := map[string]any{"mode": a.mode.Name, "config": a.config, "local": a.local()}
	if a.mode.Name == ipvs.Name {
		told["ipvs"] = a.ipvs
	}
	writeJSON(w, told)
}

// relay tells what this process listens for, and for whom.
func (a *localAPI) relay(w http.ResponseWriter, _ *http.Request) {
	var all []relay.Listening
	for _, r := range a.relaying {
		all = append(all, r.Table()...)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = relay.WriteTable(w, all) // the asker has left: nobody to tell
}

func (a *localAPI) snapshot(w http.ResponseWriter, _ *http.Request) {
	s := a.published.Load()
	if s == nil {
		http.Error(w, noSnapshot, http.StatusServiceUnavailable)
		return
	}
	frontends := 0
	for sp := range s.ServicePorts() {
		frontends += len(sp.Frontends)
	}
	told := map[string]any{
		"revision": s.Revision(), "servicePorts": s.Len(), "frontends": frontends, "node": s.Node(),
	}
	if since, waiting := a.reconciler.Unapplied(); waiting {
		told["unappliedSince"] = since.UTC().Format(time.RFC3339Nano)
	}
	writeJSON(w, told)
}
