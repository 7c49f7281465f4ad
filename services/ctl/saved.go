package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/answer"
	"github.com/portway/portway/modules/servicecache"
)

// Saved is a node of which only files are left: the objects of the API, what
// decides besides them, and the state of its kernel.
type Saved struct {
	state    NodeState
	objects  objects
	cache    *servicecache.Cache
	snapshot *dataplane.Snapshot
	mode     dataplane.Mode // its name, and what it lacks
	planes   []savedPlane
}

// OpenSaved reads what [Save] wrote, or files of the same names in directories,
// or single files.
func OpenSaved(paths ...string) (*Saved, error) {
	s := new(Saved)
	files := make(map[string][]byte)
	for _, path := range paths {
		more, err := readFiles(path)
		if err != nil {
			return nil, fmt.Errorf("read what was saved: %w", err)
		}
		for name, text := range more {
			if err := s.file(name, text, files); err != nil {
				return nil, fmt.Errorf("read %s: %s: %w", path, name, err)
			}
		}
	}
	if err := s.decide(files[nodeFile]); err != nil {
		return nil, err
	}
	if err := s.open(files); err != nil {
		return nil, err
	}
	return s, nil
}

// file keeps a file for later, or reads its objects.
func (s *Saved) file(name string, text []byte, keep map[string][]byte) error {
	switch {
	case isStateFile(name):
		keep[name] = text
	case slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
		return s.objects.read(text)
	}
	return nil
}

// errNoNode says what is missing and how to come by it.
var errNoNode = errors.New(nodeFile + ` is missing: "portwayctl dump" saves it on the node; by hand it is ` +
	`{"mode": "iptables", "config": {"nodeName": …, "detectLocal": "NodeCIDR", "masqueradeBit": 14, "dropUnallocated": true, "dropInvalid": true}, ` +
	`"local": {"addresses": ["192.0.2.10/24", …]}}`)

// decide makes the snapshot.
func (s *Saved) decide(state []byte) error {
	if state == nil {
		return errNoNode
	}
	decoder := json.NewDecoder(bytes.NewReader(state))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s.state); err != nil {
		return fmt.Errorf("read %s: line %d: %w", nodeFile, lineOf(state, decoder, err), err)
	}
	cache, err := servicecache.New(s.state.Config)
	if err != nil {
		return fmt.Errorf("read %s: %w", nodeFile, err)
	}
	cache.SetLocal(s.state.Local)
	for _, o := range s.objects.nodes {
		cache.SetNode(o)
	}
	for _, o := range s.objects.cidrs {
		cache.SetServiceCIDR(o)
	}
	for _, o := range s.objects.services {
		cache.SetService(o)
	}
	for _, o := range s.objects.slices {
		cache.SetEndpointSlice(o)
	}
	s.cache = cache
	s.snapshot, _ = cache.Build(time.Time{})
	return nil
}

// lineOf is where a decoder met an error.
func lineOf(text []byte, d *json.Decoder, err error) int {
	at := d.InputOffset()
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
	}
	return 1 + bytes.Count(text[:min(at, int64(len(text)))], []byte("\n"))
}

// Explain follows a flow through the saved state.
func (s *Saved) Explain(ctx context.Context, q answer.Query) (answer.Explanation, error) {
	f, err := q.Flow(s.snapshot.Node(), s.toward)
	if err != nil {
		return answer.Explanation{}, err
	}
	e := answer.Explanation{Flow: f.String(), Planes: []answer.Plane{}}
	for _, p := range s.planes {
		if p.family != dataplane.FamilyOf(f.Dst.Addr()) || p.loopback != f.Dst.Addr().IsLoopback() {
			continue
		}
		pe := dataplane.PlaneExplanation{Plane: p.name, Verdict: s.snapshot.Decide(f)}
		pe.Explanation, pe.Err = p.Explain(ctx, f)
		var why *dataplane.Reasons
		if r, ok := s.cache.Explain(pe.Verdict); ok {
			why = &r
		}
		e.Planes = append(e.Planes, answer.Explain(pe, s.mode.Lacks, why))
	}
	if len(e.Planes) == 0 && f.Dst.Addr().IsLoopback() {
		return e, missing(relayFile)
	}
	return e, nil
}

// toward is the device of the saved route to an address.
func (s *Saved) toward(a netip.Addr) (string, error) {
	best := Route{}
	for _, r := range s.state.Routes {
		if r.To.Contains(a) && (!best.To.IsValid() || r.To.Bits() > best.To.Bits()) {
			best = r
		}
	}
	if !best.To.IsValid() {
		return "", errors.New("no route to it was saved")
	}
	return best.Device, nil
}

// Audit compares the saved state with what the objects want.
func (s *Saved) Audit(ctx context.Context) (answer.Audit, error) {
	var a answer.Audit
	for _, p := range s.planes {
		found, err := p.Audit(ctx, s.snapshot)
		a.Planes = append(a.Planes, answer.Differences(p.name, found, err))
	}
	return a, nil
}

// Service returns the ports of a Service.
func (s *Saved) Service(_ context.Context, n dataplane.ServiceName) ([]answer.Port, error) {
	return answer.Ports(s.snapshot, n), nil
}

// Node returns the addresses of a saved Node.
func (s *Saved) Node(_ context.Context, name string) ([]netip.Addr, error) {
	for _, n := range s.objects.nodes {
		if n.Name == name {
			return nodeAddresses(n), nil
		}
	}
	return nil, fmt.Errorf("no Node %s was saved: give its address", name)
}

// Pod returns the addresses of a saved Pod.
func (s *Saved) Pod(_ context.Context, namespace, name string) ([]netip.Addr, error) {
	for _, p := range s.objects.pods {
		if p.Namespace == namespace && p.Name == name {
			return podAddresses(p), nil
		}
	}
	return nil, fmt.Errorf("no Pod %s/%s was saved: give its address, or its object by another --from", namespace, name)
}
