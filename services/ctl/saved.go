package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/answer"
	"github.com/portway/portway/modules/iptables"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/servicecache"
)

// Saved is a node of which only files are left: the objects of the API, what
// decides besides them, and the state of its kernel.
type Saved struct {
	state    NodeState
	objects  objects
	cache    *servicecache.Cache
	snapshot *dataplane.Snapshot
	planes   []dataplane.NamedPlane
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
	return s, s.open(files)
}

// file keeps a file for later, or reads its objects.
func (s *Saved) file(name string, text []byte, keep map[string][]byte) error {
	switch {
	case slices.Contains([]string{nodeFile, rulesFile4, rulesFile6, setsFile}, name):
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
		return fmt.Errorf("read %s: %w", nodeFile, err)
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

// open makes a plane for each family whose rules were saved.
func (s *Saved) open(files map[string][]byte) error {
	if s.state.Mode != iptables.Name {
		return fmt.Errorf("the node ran the mode %q: only what was saved of the %s mode can be read, ask its agent instead", s.state.Mode, iptables.Name)
	}
	isLocal := func(a netip.Addr) bool {
		return slices.ContainsFunc(s.state.Local.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	}
	for f, name := range map[dataplane.Family]string{dataplane.IPv4: rulesFile4, dataplane.IPv6: rulesFile6} {
		rules, ok := files[name]
		if !ok {
			continue
		}
		var sets io.Reader
		if text, ok := files[setsFile]; ok {
			sets = bytes.NewReader(text)
		}
		dump, err := netfilter.ReadDump(f, bytes.NewReader(rules), sets)
		if err != nil {
			return fmt.Errorf("read %s and %s: %w", name, setsFile, err)
		}
		s.planes = append(s.planes, dataplane.NamedPlane{
			Name: iptables.Name + " " + f.String(), Family: f, Plane: iptables.NewPlane(f, dump, isLocal),
		})
	}
	if len(s.planes) == 0 {
		return fmt.Errorf("neither %s nor %s was saved", rulesFile4, rulesFile6)
	}
	slices.SortFunc(s.planes, func(a, b dataplane.NamedPlane) int { return int(a.Family) - int(b.Family) })
	return nil
}

// Explain follows a flow through the saved state.
func (s *Saved) Explain(ctx context.Context, q answer.Query) (answer.Explanation, error) {
	f, err := q.Flow(s.snapshot.Node(), s.toward)
	if err != nil {
		return answer.Explanation{}, err
	}
	if f.Dst.Addr().IsLoopback() {
		return answer.Explanation{}, errors.New("on loopback a socket of the agent answers, of which nothing is saved: ask the agent")
	}
	e := answer.Explanation{Flow: f.String(), Planes: []answer.Plane{}}
	for _, p := range s.planes {
		if p.Family != dataplane.FamilyOf(f.Dst.Addr()) {
			continue
		}
		pe := dataplane.PlaneExplanation{Plane: p.Name, Verdict: s.snapshot.Decide(f)}
		pe.Explanation, pe.Err = p.Plane.Explain(ctx, f)
		var why *dataplane.Reasons
		if r, ok := s.cache.Explain(pe.Verdict); ok {
			why = &r
		}
		e.Planes = append(e.Planes, answer.Explain(pe, nil, why))
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
		found, err := p.Plane.Audit(ctx, s.snapshot)
		a.Planes = append(a.Planes, answer.Differences(p.Name, found, err))
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
