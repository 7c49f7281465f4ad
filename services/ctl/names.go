package ctl

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/answer"
)

// ThisNode is the source of what the node itself sends.
const ThisNode = "node"

// Resolve turns the names of a question into addresses. A name is
// pod/NAMESPACE/NAME, node/NAME or svc/NAMESPACE/NAME, with :PORT behind it
// where a port is wanted, which for a Service may be a port's name and be left
// out if there is only one. Of the addresses behind two names the first two of
// one family are taken.
func Resolve(ctx context.Context, names Names, q answer.Query) (answer.Query, error) {
	protocol := dataplane.TCP
	if q.Protocol != "" {
		p, err := dataplane.ParseProtocol(q.Protocol)
		if err != nil {
			return q, err
		}
		protocol = p
	}
	r := resolver{names, protocol}
	to, err := r.places(ctx, q.Destination)
	if err != nil {
		return q, fmt.Errorf("destination: %w", err)
	}
	if q.Source == ThisNode || q.Source == "" {
		q.Source, q.Destination = "", to[0].String()
		return q, nil
	}
	from, err := r.places(ctx, q.Source)
	if err != nil {
		return q, fmt.Errorf("source: %w", err)
	}
	for _, d := range to {
		i := slices.IndexFunc(from, func(s place) bool { return s.addr.Is4() == d.addr.Is4() })
		if i >= 0 {
			q.Source, q.Destination = from[i].String(), d.String()
			return q, nil
		}
	}
	return q, fmt.Errorf("%s (%s) and %s (%s) have no family in common", q.Source, from[0], q.Destination, to[0])
}

type resolver struct {
	names    Names
	protocol dataplane.Protocol
}

// place is an address, and a port if one is known.
type place struct {
	addr netip.Addr
	port uint16
}

func (p place) String() string {
	if p.port == 0 {
		return p.addr.String()
	}
	return netip.AddrPortFrom(p.addr, p.port).String()
}

// places are what a word may mean; at least one.
func (r resolver) places(ctx context.Context, word string) ([]place, error) {
	kind, rest, named := strings.Cut(word, "/")
	if !named {
		return literal(word)
	}
	name, port, _ := strings.Cut(rest, ":")
	namespace, object, both := strings.Cut(name, "/")
	if kind != "node" && (!both || namespace == "" || object == "") || kind == "node" && (both || name == "") {
		return nil, fmt.Errorf("%q is none of pod/NAMESPACE/NAME, node/NAME and svc/NAMESPACE/NAME", word)
	}
	switch kind {
	case "svc", "service":
		return r.service(ctx, dataplane.ServiceName{Namespace: namespace, Name: object}, port)
	case "pod":
		addrs, err := r.names.Pod(ctx, namespace, object)
		return at(word, addrs, port, err)
	case "node":
		addrs, err := r.names.Node(ctx, name)
		return at(word, addrs, port, err)
	}
	return nil, fmt.Errorf("%q names a %s: want a pod, a node or a svc", word, kind)
}

func literal(word string) ([]place, error) {
	if a, err := netip.ParseAddr(word); err == nil {
		return []place{{a.Unmap(), 0}}, nil
	}
	ap, err := netip.ParseAddrPort(word)
	if err != nil {
		return nil, fmt.Errorf("%q is neither an address, with a port or without, nor a name such as svc/shop/web:80", word)
	}
	return []place{{ap.Addr().Unmap(), ap.Port()}}, nil
}

// at puts a port behind addresses.
func at(word string, addrs []netip.Addr, port string, err error) ([]place, error) {
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%s has no address yet", word)
	}
	var number uint64
	if port != "" {
		if number, err = strconv.ParseUint(port, 10, 16); err != nil {
			return nil, fmt.Errorf("%q is no port number", port)
		}
	}
	all := make([]place, len(addrs))
	for i, a := range addrs {
		all[i] = place{a, uint16(number)}
	}
	return all, nil
}

// service are the ClusterIPs of a port that is given by name, by number, or by
// being the only one of the protocol.
func (r resolver) service(ctx context.Context, n dataplane.ServiceName, port string) ([]place, error) {
	ports, err := r.names.Service(ctx, n)
	if err != nil {
		return nil, err
	}
	if len(ports) == 0 {
		return nil, fmt.Errorf("no Service %s is served: it does not exist, has no ClusterIP, or is another proxy's", n)
	}
	var known []string
	var found []answer.Port
	for _, p := range ports {
		if p.Protocol == r.protocol.String() || !r.protocol.HasPorts() {
			known = append(known, fmt.Sprintf("%d", p.Port))
			if port == "" || port == p.Name || port == strconv.Itoa(int(p.Port)) {
				found = append(found, p)
			}
		}
	}
	if len(found) != 1 && (r.protocol.HasPorts() || len(found) == 0) {
		return nil, fmt.Errorf("name one port of Service %s: those of %s are %s", n, r.protocol, strings.Join(known, ", "))
	}
	all := make([]place, len(found[0].Addresses))
	for i, a := range found[0].Addresses {
		all[i] = place{a, found[0].Port}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("port %d of Service %s has no ClusterIP of its own", found[0].Port, n)
	}
	return all, nil
}
