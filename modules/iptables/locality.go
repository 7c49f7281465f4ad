package iptables

import (
	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/netfilter"
)

// locality is what tells the origins of a flow apart, for one family: the part
// of the node on which fragments depend.
type locality struct{ netfilter.Locality }

func newLocality(n *dataplane.Node, f dataplane.Family) locality {
	return locality{netfilter.LocalityOf(n, f)}
}

// fromNode matches the flows of the node itself. Those that it sends have a
// local source in OUTPUT already.
func fromNode() netfilter.Rule { return netfilter.Rule{SourceType: netfilter.Local} }
