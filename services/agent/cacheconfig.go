package agent

import (
	"net/netip"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/portway/portway/modules/servicecache"
	"github.com/portway/portway/services/agent/config"
)

// cacheConfig says what was configured in the words of the service cache.
func cacheConfig(opts *config.Options, node string, started time.Time) servicecache.Config {
	cfg := opts.Proxy
	c := servicecache.Config{
		ProxyName:         opts.Agent.ServiceProxyName,
		NodeName:          node,
		Start:             started,
		MasqueradeAll:     config.MasqueradeAll(cfg),
		MasqueradeBit:     config.MasqueradeBit(cfg),
		NodePortAddresses: cfg.NodePortAddresses,
		DropEmptyLocal:    opts.Agent.InternalTrafficPolicyEmpty == config.Drop,
		DropUnallocated:   opts.Agent.UnallocatedServiceIPs == config.Drop,
		DropInvalid:       true,
	}
	if ip := config.NodeIP(cfg); ip.IsValid() {
		c.NodeIPs = []netip.Addr{ip}
	}
	setDetection(&c, cfg)
	switch opts.Agent.ExternalIPs {
	case config.All:
		c.ExternalIPs = servicecache.AllExternalIPs
	case config.None:
		c.ExternalIPs = servicecache.NoExternalIPs
	default:
		c.ExternalIPs, c.ExternalIPRanges = servicecache.ListedExternalIPs, opts.Agent.ExternalIPRanges()
	}
	return c
}

func setDetection(c *servicecache.Config, cfg *v1alpha1.KubeProxyConfiguration) {
	switch cfg.DetectLocalMode {
	case config.ClusterCIDR:
		if c.ClusterCIDRs = config.ClusterCIDRs(cfg); len(c.ClusterCIDRs) > 0 {
			c.DetectLocal = servicecache.DetectClusterCIDR
		}
	case config.NodeCIDR:
		c.DetectLocal = servicecache.DetectNodeCIDR
	case config.BridgeInterface:
		c.DetectLocal, c.Interface = servicecache.DetectBridgeInterface, cfg.DetectLocal.BridgeInterface
	case config.InterfaceNamePrefix:
		c.DetectLocal, c.Interface = servicecache.DetectInterfaceNamePrefix, cfg.DetectLocal.InterfaceNamePrefix
	}
}
