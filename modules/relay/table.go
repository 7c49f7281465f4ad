package relay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
)

// Listening is a listener as it was at one time.
type Listening struct {
	Protocol dataplane.Protocol
	Addr     netip.AddrPort
	Route    Route
	// Bound are clients that affinity binds.
	Bound map[netip.Addr]Binding
	// Resting are endpoints that did not answer, and how much longer they are
	// left alone.
	Resting map[netip.AddrPort]time.Duration
}

// Binding is the endpoint of a client, for a while.
type Binding struct {
	To   netip.AddrPort
	Left time.Duration
}

// Everybody is all clients.
func Everybody(netip.Addr) bool { return true }

// Nobody is no client.
func Nobody(netip.Addr) bool { return false }

// Table is all that listens, sorted by address, with what is remembered of some
// clients. It is safe for concurrent use.
func (r *Relay) Table(clients func(netip.Addr) bool) []Listening {
	r.mu.Lock()
	open := make([]*Listener, 0, len(r.open))
	for _, l := range r.open {
		open = append(open, l)
	}
	r.mu.Unlock()
	now := time.Now()
	all := make([]Listening, len(open))
	for i, l := range open {
		all[i] = Listening{Protocol: l.protocol, Addr: l.addr}
		l.balancer.tell(&all[i], now, clients)
	}
	slices.SortFunc(all, Listening.compare)
	return all
}

func (l Listening) compare(o Listening) int {
	return cmp.Or(l.Addr.Compare(o.Addr), cmp.Compare(l.Protocol, o.Protocol))
}

// Find returns what listens at an address, in a table that is sorted.
func Find(table []Listening, p dataplane.Protocol, at netip.AddrPort) (*Listening, bool) {
	i, ok := slices.BinarySearchFunc(table, Listening{Protocol: p, Addr: at}, Listening.compare)
	if !ok {
		return nil, false
	}
	return &table[i], true
}

// Explain tells where a new flow of a client without memory goes, after the
// steps that led it here. Notes tell what binds this client or keeps an
// endpoint out for now.
func (l *Listening) Explain(f dataplane.Flow, before []dataplane.Step) ([]dataplane.Outcome, []string) {
	total := 0
	for _, e := range l.Route.Endpoints {
		total += int(e.Weight)
	}
	steps := append(slices.Clip(before), dataplane.Step{
		Object: fmt.Sprintf("relay at %s %s", strings.ToLower(l.Protocol.String()), l.Addr),
		Detail: fmt.Sprintf("%s, in turn to %s", l.Route.Name, l.Route),
	})
	all := make([]dataplane.Outcome, len(l.Route.Endpoints))
	for i, e := range l.Route.Endpoints {
		all[i] = dataplane.Outcome{
			Action: dataplane.Forward, Endpoint: e.Addr, Masqueraded: true,
			Probability: float64(e.Weight) / float64(total), Steps: steps,
		}
	}
	return all, l.notes(f.Src.Addr())
}

// notes tell of memory that concerns a client.
func (l *Listening) notes(client netip.Addr) []string {
	var all []string
	if k, ok := l.Bound[client]; ok {
		all = append(all, fmt.Sprintf("session affinity binds %s to %s for %s more", client, k.To, k.Left.Round(time.Second)))
	}
	for ep, left := range l.Resting {
		all = append(all, fmt.Sprintf("%s did not answer and is left alone for %s more", ep, left.Round(time.Second)))
	}
	slices.Sort(all)
	return all
}
