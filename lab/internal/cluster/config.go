// Package cluster makes and deletes the kind cluster, and on an offline one
// the pod network that kind's own images would bring.
package cluster

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
)

// Name is the cluster's name; its nodes are portway-control-plane,
// portway-worker, portway-worker2 and so on.
const Name = "portway"

// The Service networks, per family. The guard inside offline nodes names them
// too.
const (
	ServiceCIDR4 = "10.96.0.0/16"
	ServiceCIDR6 = "fd00:10:96::/112"
)

// Proxies that a cluster may have.
const (
	Portway   = "portway"
	KubeProxy = "kube-proxy"
)

// Options are what a person chooses.
type Options struct {
	Proxy   string // Portway, or KubeProxy to compare with
	Mode    string // the proxy's mode
	Family  string // ipv4, ipv6 or dual
	Workers int
}

// modes are the modes of each proxy.
func modes(proxy string) []string {
	switch proxy {
	case Portway:
		return []string{"iptables", "userspace", "ipvs"}
	case KubeProxy:
		return []string{"iptables", "ipvs", "nftables"}
	}
	return nil
}

// Validate reports the first choice that is not one.
func (o Options) Validate() error {
	known := modes(o.Proxy)
	if known == nil {
		return fmt.Errorf("--proxy %q is not %s or %s", o.Proxy, Portway, KubeProxy)
	}
	if !slices.Contains(known, o.Mode) {
		return fmt.Errorf("--mode %q is not a mode of %s: choose one of %v", o.Mode, o.Proxy, known)
	}
	if families := []string{"ipv4", "ipv6", "dual"}; !slices.Contains(families, o.Family) {
		return fmt.Errorf("--family %q is not one of %v", o.Family, families)
	}
	if o.Workers < 0 || o.Workers > 20 {
		return fmt.Errorf("--nodes %d: choose 0 (the control plane alone) to 20 workers", o.Workers)
	}
	return nil
}

// CanBecome tells whether a cluster of these options is one of others once its
// agents are deployed again: only Portway's mode differs.
func (o Options) CanBecome(other Options) bool {
	if o.Proxy == Portway {
		o.Mode = other.Mode
	}
	return o == other
}

// Machine is what the machine decides about a cluster.
type Machine struct {
	Image    string // the node image; empty: kind's own
	Offline  bool   // nothing can be pulled: no kindnet
	CgroupV1 bool
}

// Config is the cluster for kind.
func Config(o Options, m Machine) *v1alpha4.Cluster {
	c := &v1alpha4.Cluster{
		TypeMeta: v1alpha4.TypeMeta{Kind: "Cluster", APIVersion: "kind.x-k8s.io/v1alpha4"},
		Name:     Name,
		Networking: v1alpha4.Networking{
			IPFamily:          v1alpha4.ClusterIPFamily(o.Family),
			KubeProxyMode:     v1alpha4.ProxyMode("none"),
			DisableDefaultCNI: m.Offline,
			ServiceSubnet:     serviceSubnet(o.Family),
		},
		Nodes: []v1alpha4.Node{{Role: v1alpha4.ControlPlaneRole, Image: m.Image}},
	}
	if o.Proxy == KubeProxy {
		c.Networking.KubeProxyMode = v1alpha4.ProxyMode(o.Mode)
	}
	for i := range o.Workers {
		c.Nodes = append(c.Nodes, v1alpha4.Node{Role: v1alpha4.WorkerRole, Image: m.Image, Labels: map[string]string{zoneLabel: zone(i)}})
	}
	if m.CgroupV1 {
		// Since 1.35 the kubelet refuses cgroup v1 unless told otherwise.
		c.KubeadmConfigPatches = []string{"kind: KubeletConfiguration\nfailCgroupV1: false\n"}
	}
	return c
}

const zoneLabel = "topology.kubernetes.io/zone"

// zone is where worker i is: three zones, in turn. The control plane is in none.
func zone(i int) string { return "zone-" + string(rune('a'+i%3)) }

func serviceSubnet(family string) string {
	switch family {
	case "ipv6":
		return ServiceCIDR6
	case "dual":
		return ServiceCIDR4 + "," + ServiceCIDR6
	}
	return ServiceCIDR4
}

// String is the options as the lab's flags.
func (o Options) String() string {
	return fmt.Sprintf("--proxy %s --mode %s --family %s --nodes %d", o.Proxy, o.Mode, o.Family, o.Workers)
}
