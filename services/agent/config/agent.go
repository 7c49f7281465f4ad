package config

import (
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Agent is what kube-proxy does not have. These settings are flags, and hold
// with and without a configuration file.
type Agent struct {
	// ModeFallback is Allow or Error: what to do when this node cannot run the
	// mode that was asked for.
	ModeFallback string
	// ServiceProxyName is the value of the label
	// service.kubernetes.io/service-proxy-name whose Services are served; with
	// none, those without the label are.
	ServiceProxyName string
	// ExternalIPs is All, None, or the CIDRs of which they may be, separated by
	// commas (CVE-2020-8554).
	ExternalIPs string
	// UnallocatedServiceIPs is Drop or Ignore: what becomes of flows to
	// addresses of the ServiceCIDRs that no Service has.
	UnallocatedServiceIPs string
	// InternalTrafficPolicyEmpty is Reject or Drop: the answer of a Service
	// with internalTrafficPolicy Local that has no endpoint on this node.
	InternalTrafficPolicyEmpty string
	// Socket is the path of the local API, empty for none.
	Socket string
}

// The words for settings of Agent.
const (
	Allow  = "allow"
	Error  = "error"
	All    = "all"
	None   = "none"
	Drop   = "drop"
	Ignore = "ignore"
	Reject = "reject"
)

// DefaultAgent returns the settings that hold when no flag is given.
func DefaultAgent() Agent {
	return Agent{
		ModeFallback:               Allow,
		ExternalIPs:                All,
		UnallocatedServiceIPs:      Drop,
		InternalTrafficPolicyEmpty: Reject,
		Socket:                     "/run/portway/portway.sock",
	}
}

// AddFlags binds the settings to flags.
func (a *Agent) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.ModeFallback, "mode-fallback", a.ModeFallback,
		"What to do when this node cannot run the proxy mode that was asked for: 'allow' uses the next best mode and says so; 'error' exits. Portway only.")
	fs.StringVar(&a.ServiceProxyName, "service-proxy-name", a.ServiceProxyName,
		"Serve the Services whose label service.kubernetes.io/service-proxy-name has this value, instead of those without the label. Portway only.")
	fs.StringVar(&a.ExternalIPs, "external-ips", a.ExternalIPs,
		"Which externalIPs of Services to serve: 'all', 'none', or a comma-separated list of CIDRs. Portway only.")
	fs.StringVar(&a.UnallocatedServiceIPs, "unallocated-service-ips", a.UnallocatedServiceIPs,
		"What becomes of connections to addresses of the ServiceCIDRs that no Service has: 'drop' or 'ignore'. Portway only.")
	fs.StringVar(&a.InternalTrafficPolicyEmpty, "internal-traffic-policy-empty", a.InternalTrafficPolicyEmpty,
		"How a Service with internalTrafficPolicy Local answers where it has no endpoint on this node: 'reject', or 'drop' as kube-proxy does. Portway only.")
	fs.StringVar(&a.Socket, "agent-socket", a.Socket,
		"Path of the unix socket on which portwayctl asks this agent; empty for none. Portway only.")
}

// ExternalIPRanges returns the ranges of which externalIPs may be, when
// ExternalIPs lists some.
func (a *Agent) ExternalIPRanges() []netip.Prefix {
	if a.ExternalIPs == All || a.ExternalIPs == None {
		return nil
	}
	return prefixes(strings.Split(a.ExternalIPs, ","))
}

// Validate returns everything that is wrong, named by flag.
func (a *Agent) Validate() field.ErrorList {
	var errs field.ErrorList
	oneOf := func(flag, value string, words ...string) {
		for _, w := range words {
			if value == w {
				return
			}
		}
		errs = append(errs, field.NotSupported(field.NewPath(flag), value, words))
	}
	oneOf("--mode-fallback", a.ModeFallback, Allow, Error)
	oneOf("--unallocated-service-ips", a.UnallocatedServiceIPs, Drop, Ignore)
	oneOf("--internal-traffic-policy-empty", a.InternalTrafficPolicyEmpty, Reject, Drop)
	if a.ExternalIPs != All && a.ExternalIPs != None {
		for s := range strings.SplitSeq(a.ExternalIPs, ",") {
			if _, err := parsePrefix(s); err != nil {
				errs = append(errs, field.Invalid(field.NewPath("--external-ips"), s, "must be 'all', 'none' or a list of CIDRs"))
			}
		}
	}
	return errs
}
