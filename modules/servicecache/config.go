package servicecache

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// SchedulerAnnotation on a Service is its wish for an IPVS scheduler, by the
// kernel's name of it.
const SchedulerAnnotation = "portway.dev/ipvs-scheduler"

// Config is what does not change while a Cache lives. The zero value serves
// all Services of an unnamed node and knows no pods. Its JSON is what
// portwayctl saves and reads.
type Config struct {
	// ProxyName limits the Services to those whose service-proxy-name label
	// has this value; empty: those without that label.
	ProxyName string `json:"proxyName,omitempty"`
	NodeName  string `json:"nodeName,omitempty"`
	// NodeIPs replace the Node's own addresses of their families.
	NodeIPs []netip.Addr `json:"nodeIPs,omitempty"`
	// Start is when the process began: older stamps of the control plane tell
	// nothing about its speed (kubernetes#82378).
	Start time.Time `json:"-"`

	// DetectLocal is how flows of pods are told from others.
	DetectLocal DetectLocal `json:"detectLocal,omitempty"`
	// ClusterCIDRs belong to DetectClusterCIDR; the first of a family counts.
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs,omitempty"`
	// Interface is the bridge, or the beginning of the interfaces' names.
	Interface string `json:"interface,omitempty"`

	// MasqueradeAll masquerades all flows to ClusterIPs.
	MasqueradeAll bool `json:"masqueradeAll,omitempty"`
	// MasqueradeBit is the one bit of the packet mark that planes may use.
	MasqueradeBit int `json:"masqueradeBit,omitempty"`
	// NodePortAddresses are CIDRs and the words primary, localhost and all. A
	// family that none of them names has all its addresses; none at all is all.
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"`
	// ExternalIPs says which externalIPs are served (CVE-2020-8554).
	ExternalIPs ExternalIPs `json:"externalIPs,omitempty"`
	// ExternalIPRanges belong to ListedExternalIPs.
	ExternalIPRanges []netip.Prefix `json:"externalIPRanges,omitempty"`
	// DropEmptyLocal drops flows to a ClusterIP with internalTrafficPolicy
	// Local and no endpoint on this node, as kube-proxy does. Otherwise they
	// are rejected, so that a pod fails fast.
	DropEmptyLocal bool `json:"dropEmptyLocal,omitempty"`
	// DropUnallocated drops flows to addresses of the ServiceCIDRs that no
	// Service has.
	DropUnallocated bool `json:"dropUnallocated,omitempty"`
	// DropInvalid drops what conntrack calls invalid, unless the kernel is told
	// to be liberal about it.
	DropInvalid bool `json:"dropInvalid,omitempty"`
}

// DetectLocal is a way to tell the flows of pods from others.
type DetectLocal uint8

// The ways.
const (
	DetectNone DetectLocal = iota
	DetectClusterCIDR
	DetectNodeCIDR
	DetectBridgeInterface
	DetectInterfaceNamePrefix
)

// ExternalIPs is a policy for externalIPs.
type ExternalIPs uint8

// The policies.
const (
	AllExternalIPs ExternalIPs = iota
	NoExternalIPs
	ListedExternalIPs
)

// settings is a Config that was checked and read.
type settings struct {
	Config
	nodePorts nodePortSelection
}

func (c Config) check() (settings, error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	selection, err := selectNodePorts(c.NodePortAddresses)
	if err != nil {
		errs = append(errs, err)
	}
	if c.MasqueradeBit < 0 || c.MasqueradeBit > 31 {
		wrong("masquerade bit %d: want 0 to 31", c.MasqueradeBit)
	}
	switch c.DetectLocal {
	case DetectNone, DetectNodeCIDR:
	case DetectClusterCIDR:
		if len(c.ClusterCIDRs) == 0 {
			wrong("detection of pods by cluster CIDR needs a cluster CIDR")
		}
	case DetectBridgeInterface, DetectInterfaceNamePrefix:
		if c.Interface == "" {
			wrong("detection of pods by interface needs an interface name")
		}
	default:
		wrong("unknown way %d to detect pods", c.DetectLocal)
	}
	for _, p := range append(c.ClusterCIDRs[:len(c.ClusterCIDRs):len(c.ClusterCIDRs)], c.ExternalIPRanges...) {
		if !p.IsValid() {
			wrong("invalid CIDR among cluster CIDRs or externalIP ranges")
		}
	}
	if c.ExternalIPs > ListedExternalIPs {
		wrong("unknown externalIP policy %d", c.ExternalIPs)
	}
	return settings{c, selection}, errors.Join(errs...)
}
