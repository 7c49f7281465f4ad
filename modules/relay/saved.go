package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// saved is a Listening as it is written: a JSON object.
type saved struct {
	Protocol  string           `json:"protocol"`
	Address   netip.AddrPort   `json:"address"`
	Namespace string           `json:"namespace"`
	Service   string           `json:"service"`
	Port      string           `json:"port,omitempty"`
	Scope     string           `json:"scope"`
	Affinity  duration         `json:"affinity,omitempty"`
	Endpoints []savedEndpoint  `json:"endpoints"`
	Serving   []netip.AddrPort `json:"serving,omitempty"`
	Bound     []savedBinding   `json:"bound,omitempty"`
	Resting   []savedRest      `json:"resting,omitempty"`
}

type savedEndpoint struct {
	Address netip.AddrPort `json:"address"`
	Weight  uint16         `json:"weight"`
	Local   bool           `json:"local,omitempty"`
}

type savedBinding struct {
	Client netip.Addr     `json:"client"`
	To     netip.AddrPort `json:"to"`
	Left   duration       `json:"left"`
}

type savedRest struct {
	Address netip.AddrPort `json:"address"`
	Left    duration       `json:"left"`
}

// duration is written as "3h0m0s".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	if err == nil && t < 0 {
		err = fmt.Errorf("the time %s is less than none", t)
	}
	*d = duration(t)
	return err
}

// WriteTable writes a table as a JSON array.
func WriteTable(w io.Writer, table []Listening) error {
	all := make([]saved, len(table))
	for i := range table {
		all[i] = table[i].save()
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(all)
}

func (l *Listening) save() saved {
	n := l.Route.Name
	s := saved{
		Protocol: l.Protocol.String(), Address: l.Addr, Namespace: n.Namespace, Service: n.Name, Port: n.Port,
		Scope: l.Route.Scope.String(), Affinity: duration(l.Route.Affinity), Serving: l.Route.Serving,
		Endpoints: make([]savedEndpoint, 0, len(l.Route.Endpoints)),
	}
	for _, e := range l.Route.Endpoints {
		s.Endpoints = append(s.Endpoints, savedEndpoint{e.Addr, e.Weight, e.Local})
	}
	for _, client := range slices.SortedFunc(maps.Keys(l.Bound), netip.Addr.Compare) {
		s.Bound = append(s.Bound, savedBinding{client, l.Bound[client].To, duration(l.Bound[client].Left)})
	}
	for _, ep := range slices.SortedFunc(maps.Keys(l.Resting), netip.AddrPort.Compare) {
		s.Resting = append(s.Resting, savedRest{ep, duration(l.Resting[ep])})
	}
	return s
}

// ReadTable reads what WriteTable wrote. An error names the line at which the
// listener begins that makes no sense.
func ReadTable(r io.Reader) ([]Listening, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read the listeners: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.New("line 1: want a JSON array of listeners")
	}
	var all []Listening
	taken := make(map[place]bool)
	for d.More() {
		line := lineAt(text, d.InputOffset())
		var s saved
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		l, err := s.listening()
		if at := (place{l.Protocol, l.Addr}); err == nil && taken[at] {
			err = errors.New("another one listens there already")
		} else {
			taken[at] = true
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: listener at %s %s: %w", line, s.Protocol, s.Address, err)
		}
		all = append(all, l)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("line %d: the array of listeners does not end: %w", lineAt(text, d.InputOffset()), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("line %d: there is something behind the array of listeners", lineAt(text, d.InputOffset()))
	}
	slices.SortFunc(all, Listening.compare)
	return all, nil
}

// lineAt is the line of what comes next after an offset.
func lineAt(text []byte, offset int64) int {
	rest := bytes.TrimLeft(text[offset:], " \t\r\n,")
	return 1 + bytes.Count(text[:len(text)-len(rest)], []byte("\n"))
}

func (s *saved) listening() (Listening, error) {
	l := Listening{Addr: s.Address, Bound: make(map[netip.Addr]Binding), Resting: make(map[netip.AddrPort]time.Duration)}
	var err error
	if l.Protocol, err = dataplane.ParseProtocol(s.Protocol); err != nil {
		return l, err
	}
	l.Route = Route{
		Name:     dataplane.ServicePortName{Namespace: s.Namespace, Name: s.Service, Port: s.Port, Protocol: l.Protocol},
		Affinity: time.Duration(s.Affinity), Serving: s.Serving,
	}
	switch s.Scope {
	case dataplane.Cluster.String():
	case dataplane.Local.String():
		l.Route.Scope = dataplane.Local
	default:
		return l, fmt.Errorf("unknown scope %q", s.Scope)
	}
	switch {
	case l.Protocol != dataplane.TCP && l.Protocol != dataplane.UDP:
		return l, fmt.Errorf("nothing relays %s", l.Protocol)
	case !s.Address.IsValid() || s.Address.Port() == 0:
		return l, errors.New("it has no address and port")
	case s.Namespace == "" || s.Service == "" || strings.Contains(s.Namespace+s.Service+s.Port, "/"):
		return l, fmt.Errorf("%q, %q, %q name no port of a Service", s.Namespace, s.Service, s.Port)
	case len(s.Endpoints) == 0:
		return l, errors.New("it has no endpoints")
	}
	return l, s.memory(&l)
}

// memory reads the endpoints, and what is remembered of them.
func (s *saved) memory(l *Listening) error {
	for _, e := range s.Endpoints {
		if !e.Address.IsValid() || e.Weight == 0 || dataplane.FamilyOf(e.Address.Addr()) != dataplane.FamilyOf(s.Address.Addr()) {
			return fmt.Errorf("%s with weight %d cannot be an endpoint of it", e.Address, e.Weight)
		}
		l.Route.Endpoints = append(l.Route.Endpoints, dataplane.Endpoint{Addr: e.Address, Weight: e.Weight, Local: e.Local})
	}
	for _, b := range s.Bound {
		if !b.Client.IsValid() || !b.To.IsValid() {
			return fmt.Errorf("%s cannot be bound to %s", b.Client, b.To)
		}
		l.Bound[b.Client] = Binding{b.To, time.Duration(b.Left)}
	}
	for _, r := range s.Resting {
		if !r.Address.IsValid() {
			return errors.New("an endpoint that is left alone has no address")
		}
		l.Resting[r.Address] = time.Duration(r.Left)
	}
	return nil
}
