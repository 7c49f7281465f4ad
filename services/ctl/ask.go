package ctl

import (
	"context"
	"net/netip"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/answer"
	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/modules/servicecache"
)

// An Asker answers questions about one node.
type Asker interface {
	Explain(context.Context, answer.Query) (answer.Explanation, error)
	Audit(context.Context) (answer.Audit, error)
	Names
}

// Names knows what things are called.
type Names interface {
	// Service returns the ports of a Service; none if Portway serves none.
	Service(context.Context, dataplane.ServiceName) ([]answer.Port, error)
	// Node and Pod return addresses, the preferred one first.
	Node(ctx context.Context, name string) ([]netip.Addr, error)
	Pod(ctx context.Context, namespace, name string) ([]netip.Addr, error)
}

// NodeState is what decides on a node besides the API's objects.
type NodeState struct {
	Mode   string              `json:"mode"`
	Config servicecache.Config `json:"config"`
	Local  servicecache.Local  `json:"local"`
	// IPVS is how the ipvs mode works, if it is that.
	IPVS *ipvs.Options `json:"ipvs,omitempty"`
	// Routes tell by which device a source comes in.
	Routes []Route `json:"routes,omitempty"`
}

// Route is a route of a node. An invalid prefix is none.
type Route struct {
	To     netip.Prefix `json:"to"`
	Device string       `json:"device"`
}

// Live is the agent of this node, and the cluster's API for what the agent does
// not know: Pods and other nodes.
type Live struct {
	*Client
	Kubernetes
}
