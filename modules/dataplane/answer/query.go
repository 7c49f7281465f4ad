package answer

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
)

// Query is a question about a flow, in words.
type Query struct {
	// Protocol is TCP if it is empty.
	Protocol string
	// Source is an address with or without a port; empty is this node.
	Source string
	// Destination is an address with a port, which ICMP does not need.
	Destination string
	// Interface is the device by which the flow reaches the node. If it is
	// empty, it follows from the source.
	Interface string
}

// anyPort is a source port as a client might have it.
const anyPort = 40000

// Flow reads the question as it is asked on a node. Toward tells by which device
// the node reaches an address, and so by which a flow from there comes in.
func (q Query) Flow(n *dataplane.Node, toward func(netip.Addr) (string, error)) (dataplane.Flow, error) {
	f := dataplane.Flow{Protocol: dataplane.TCP, InInterface: q.Interface}
	if q.Protocol != "" {
		p, err := dataplane.ParseProtocol(q.Protocol)
		if err != nil {
			return f, err
		}
		f.Protocol = p
	}
	var err error
	if f.Dst, err = addrPort(q.Destination, 0); err != nil {
		return f, fmt.Errorf("destination: %w", err)
	}
	if f.Protocol.HasPorts() && f.Dst.Port() == 0 {
		return f, fmt.Errorf("destination: %s has no port", f.Dst.Addr())
	}
	if f.Src, err = q.source(n, f.Dst.Addr()); err != nil {
		return f, fmt.Errorf("source: %w", err)
	}
	if !f.Protocol.HasPorts() {
		f.Src, f.Dst = netip.AddrPortFrom(f.Src.Addr(), 0), netip.AddrPortFrom(f.Dst.Addr(), 0)
	}
	if dataplane.FamilyOf(f.Src.Addr()) != dataplane.FamilyOf(f.Dst.Addr()) {
		return f, fmt.Errorf("the source %s and the destination %s are of different families", f.Src.Addr(), f.Dst.Addr())
	}
	if f.InInterface == "" && q.Source != "" && !n.Holds(f.Src.Addr()) {
		if f.InInterface, err = toward(f.Src.Addr()); err != nil {
			return f, fmt.Errorf("by which interface %s comes in is not known (%w): name it", f.Src.Addr(), err)
		}
	}
	return f, nil
}

func (q Query) source(n *dataplane.Node, dst netip.Addr) (netip.AddrPort, error) {
	if q.Source != "" {
		return addrPort(q.Source, anyPort)
	}
	if q.Interface != "" {
		return netip.AddrPort{}, errors.New("a flow that comes in by an interface needs one")
	}
	a := n.PrimaryIP(dataplane.FamilyOf(dst))
	if !a.IsValid() {
		return netip.AddrPort{}, fmt.Errorf("the node has no %s address: give one", dataplane.FamilyOf(dst))
	}
	return netip.AddrPortFrom(a, anyPort), nil
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
