package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// localAPI answers portwayctl on a unix socket.
type localAPI struct {
	reconciler *dataplane.Reconciler
	published  *atomic.Pointer[dataplane.Snapshot]
	lacks      []dataplane.Capability // of the mode, which explains why it does otherwise
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
	mux.HandleFunc("GET /snapshot", a.snapshot)
	return mux
}

// explanation is the answer of one plane to /explain.
type explanation struct {
	Plane        string    `json:"plane"`
	Should       verdict   `json:"should"`
	Does         []outcome `json:"does"`
	Notes        []string  `json:"notes,omitempty"`
	Agree        bool      `json:"agree"`
	Disagreement string    `json:"disagreement,omitempty"`
	Error        string    `json:"error,omitempty"`
}

type verdict struct {
	Action      string   `json:"action"`
	Origin      string   `json:"origin"`
	Reason      string   `json:"reason"`
	ServicePort string   `json:"servicePort,omitempty"`
	Frontend    string   `json:"frontend,omitempty"`
	Endpoints   []target `json:"endpoints,omitempty"`
}

type target struct {
	Address    string `json:"address"`
	Masquerade string `json:"masquerade"`
}

type outcome struct {
	Action      string  `json:"action"`
	Endpoint    string  `json:"endpoint,omitempty"`
	Masqueraded bool    `json:"masqueraded"`
	Probability float64 `json:"probability"`
	Steps       []step  `json:"steps,omitempty"`
}

type step struct {
	Object string `json:"object"`
	Detail string `json:"detail,omitempty"`
}

func (a *localAPI) explain(w http.ResponseWriter, r *http.Request) {
	flow, err := a.flow(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	planes, err := a.reconciler.Explain(r.Context(), flow)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	answers := make([]explanation, 0, len(planes))
	for _, p := range planes {
		// NodePorts on loopback have a plane of their own; each of the two
		// knows nothing of the other's flows.
		if loopback := loopbackName(dataplane.FamilyOf(flow.Dst.Addr())); (p.Plane == loopback) == flow.Dst.Addr().IsLoopback() {
			answers = append(answers, a.explained(p))
		}
	}
	writeJSON(w, map[string]any{"flow": flow.String(), "planes": answers})
}

func (a *localAPI) explained(p dataplane.PlaneExplanation) explanation {
	should := p.Verdict.Lacking(a.lacks)
	e := explanation{Plane: p.Plane, Should: verdictOf(should), Notes: p.Explanation.Notes}
	if p.Err != nil {
		e.Error = p.Err.Error()
		return e
	}
	for _, o := range p.Explanation.Outcomes {
		out := outcome{Action: o.Action.String(), Masqueraded: o.Masqueraded, Probability: o.Probability}
		if o.Endpoint.IsValid() {
			out.Endpoint = o.Endpoint.String()
		}
		for _, s := range o.Steps {
			out.Steps = append(out.Steps, step(s))
		}
		e.Does = append(e.Does, out)
	}
	if err := should.Agrees(p.Explanation); err != nil {
		e.Disagreement = err.Error()
	} else {
		e.Agree = true
	}
	return e
}

func verdictOf(v dataplane.Verdict) verdict {
	s := verdict{Action: v.Action.String(), Origin: v.Origin.String(), Reason: v.Reason}
	if v.ServicePort != nil {
		s.ServicePort, s.Frontend = v.ServicePort.Name.String(), v.Frontend.Kind.String()
	}
	if v.Action == dataplane.Forward {
		for _, e := range v.Pool.Endpoints {
			s.Endpoints = append(s.Endpoints, target{e.Addr.String(), v.MasqueradeTo(e).String()})
		}
	}
	return s
}

// flow reads the parameters proto (tcp), src, dst and iface. The port of src
// may be left out, and src itself for a flow that the node sends.
func (a *localAPI) flow(q url.Values) (dataplane.Flow, error) {
	f := dataplane.Flow{Protocol: dataplane.TCP, InInterface: q.Get("iface")}
	if p := q.Get("proto"); p != "" {
		proto, err := dataplane.ParseProtocol(p)
		if err != nil {
			return f, err
		}
		f.Protocol = proto
	}
	dst, err := addrPort(q.Get("dst"), 0)
	if err != nil {
		return f, fmt.Errorf("dst: %w", err)
	}
	if f.Protocol.HasPorts() && dst.Port() == 0 {
		return f, fmt.Errorf("dst: %s has no port", dst.Addr())
	}
	src, err := a.source(q.Get("src"), dst.Addr(), f.InInterface)
	if err != nil {
		return f, fmt.Errorf("src: %w", err)
	}
	if !f.Protocol.HasPorts() {
		src, dst = netip.AddrPortFrom(src.Addr(), 0), netip.AddrPortFrom(dst.Addr(), 0)
	}
	if dataplane.FamilyOf(src.Addr()) != dataplane.FamilyOf(dst.Addr()) {
		return f, fmt.Errorf("src %s and dst %s are of different families", src.Addr(), dst.Addr())
	}
	f.Src, f.Dst = src, dst
	return f, nil
}

// anyPort is a source port as a client might have it.
const anyPort = 40000

func (a *localAPI) source(text string, dst netip.Addr, iface string) (netip.AddrPort, error) {
	if text != "" {
		return addrPort(text, anyPort)
	}
	if iface != "" {
		return netip.AddrPort{}, errors.New("a flow that comes in by an interface needs one")
	}
	s := a.published.Load()
	if s == nil {
		return netip.AddrPort{}, errors.New("nothing is known of this node yet: give one")
	}
	node := s.Node().PrimaryIP(dataplane.FamilyOf(dst))
	if !node.IsValid() {
		return netip.AddrPort{}, fmt.Errorf("the node has no %s address: give one", dataplane.FamilyOf(dst))
	}
	return netip.AddrPortFrom(node, anyPort), nil
}

func addrPort(text string, port uint16) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a.Unmap(), port), nil
	}
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		return ap, fmt.Errorf("%q is neither an address nor one with a port", text)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// audited is the answer of one plane to /audit.
type audited struct {
	Plane       string   `json:"plane"`
	Differences []string `json:"differences"`
	Error       string   `json:"error,omitempty"`
}

func (a *localAPI) audit(w http.ResponseWriter, r *http.Request) {
	audits, err := a.reconciler.Audit(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	answers := make([]audited, 0, len(audits))
	for _, p := range audits {
		one := audited{Plane: p.Plane, Differences: []string{}}
		for _, d := range p.Differences {
			one.Differences = append(one.Differences, d.String())
		}
		if p.Err != nil {
			one.Error = p.Err.Error()
		}
		answers = append(answers, one)
	}
	writeJSON(w, map[string]any{"planes": answers})
}

func (a *localAPI) snapshot(w http.ResponseWriter, _ *http.Request) {
	s := a.published.Load()
	if s == nil {
		http.Error(w, "there is no snapshot yet: the API server's first lists are not complete", http.StatusServiceUnavailable)
		return
	}
	frontends := 0
	for sp := range s.ServicePorts() {
		frontends += len(sp.Frontends)
	}
	answer := map[string]any{
		"revision": s.Revision(), "servicePorts": s.Len(), "frontends": frontends, "node": s.Node(),
	}
	if since, waiting := a.reconciler.Unapplied(); waiting {
		answer["unappliedSince"] = since.UTC().Format(time.RFC3339Nano)
	}
	writeJSON(w, answer)
}
