package config

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// The ways to tell pods from other sources.
const (
	ClusterCIDR         v1alpha1.LocalMode = "ClusterCIDR"
	NodeCIDR            v1alpha1.LocalMode = "NodeCIDR"
	BridgeInterface     v1alpha1.LocalMode = "BridgeInterface"
	InterfaceNamePrefix v1alpha1.LocalMode = "InterfaceNamePrefix"
)

// Keywords of nodePortAddresses.
const (
	NodePortPrimary   = "primary"
	NodePortLocalhost = "localhost"
	NodePortAll       = "all"
)

// Validate returns everything that is wrong with a configuration, named by the
// path of its field in the file. The modes are those that this program knows.
func Validate(cfg *v1alpha1.KubeProxyConfiguration, modes []string) field.ErrorList {
	var c check
	c.mode("mode", string(cfg.Mode), modes)
	c.masqueradeBit("iptables", cfg.IPTables.MasqueradeBit)
	c.masqueradeBit("nftables", cfg.NFTables.MasqueradeBit)
	c.periods(cfg)
	c.conntrack(&cfg.Conntrack)
	c.ipvs(&cfg.IPVS)
	c.bindAddress(cfg.BindAddress)
	c.hostPort("healthzBindAddress", cfg.HealthzBindAddress)
	c.hostPort("metricsBindAddress", cfg.MetricsBindAddress)
	c.nodePortAddresses(cfg.NodePortAddresses)
	c.detectLocal(cfg)
	if n := cfg.OOMScoreAdj; n != nil && (*n < -1000 || *n > 1000) {
		c.invalid(field.NewPath("oomScoreAdj"), *n, "must be from -1000 to 1000")
	}
	if cfg.ClientConnection.Burst < 0 {
		c.invalid(field.NewPath("clientConnection", "burst"), cfg.ClientConnection.Burst, notNegative)
	}
	if f := cfg.Logging.Format; f != "text" && f != "json" {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("logging", "format"), f, []string{"text", "json"}))
	}
	return c.errs
}

const notNegative = "must be greater than or equal to 0"

// check collects mistakes.
type check struct{ errs field.ErrorList }

func (c *check) invalid(p *field.Path, value any, detail string) {
	c.errs = append(c.errs, field.Invalid(p, value, detail))
}

func (c *check) notNegative(d time.Duration, path ...string) {
	if d < 0 {
		c.invalid(field.NewPath(path[0], path[1:]...), d.String(), notNegative)
	}
}

func (c *check) mode(name, mode string, known []string) {
	if mode != "" && !slices.Contains(known, mode) {
		c.errs = append(c.errs, field.NotSupported(field.NewPath(name), mode, known))
	}
}

func (c *check) masqueradeBit(section string, bit *int32) {
	if bit != nil && (*bit < 0 || *bit > 31) {
		c.invalid(field.NewPath(section, "masqueradeBit"), *bit, "must be from 0 to 31")
	}
}

// periods checks those that the mode uses; kube-proxy reads no others.
func (c *check) periods(cfg *v1alpha1.KubeProxyConfiguration) {
	s := sectionOf(cfg)
	c.notNegative(s.minimum, s.name, "minSyncPeriod")
	switch p := field.NewPath(s.name, "syncPeriod"); {
	case s.sync <= 0:
		c.invalid(p, s.sync.String(), "must be greater than 0")
	case s.minimum > s.sync:
		c.invalid(p, s.sync.String(), "must be greater than or equal to "+s.name+".minSyncPeriod")
	}
	if d := cfg.ConfigSyncPeriod.Duration; d <= 0 {
		c.invalid(field.NewPath("configSyncPeriod"), d.String(), "must be greater than 0")
	}
}

func (c *check) conntrack(ct *v1alpha1.KubeProxyConntrackConfiguration) {
	number := func(name string, n *int32) {
		if n != nil && *n < 0 {
			c.invalid(field.NewPath("conntrack", name), *n, notNegative)
		}
	}
	number("maxPerCore", ct.MaxPerCore)
	number("min", ct.Min)
	c.notNegative(ct.TCPEstablishedTimeout.Duration, "conntrack", "tcpEstablishedTimeout")
	c.notNegative(ct.TCPCloseWaitTimeout.Duration, "conntrack", "tcpCloseWaitTimeout")
	c.notNegative(ct.UDPTimeout.Duration, "conntrack", "udpTimeout")
	c.notNegative(ct.UDPStreamTimeout.Duration, "conntrack", "udpStreamTimeout")
}

func (c *check) ipvs(v *v1alpha1.KubeProxyIPVSConfiguration) {
	c.notNegative(v.TCPTimeout.Duration, "ipvs", "tcpTimeout")
	c.notNegative(v.TCPFinTimeout.Duration, "ipvs", "tcpFinTimeout")
	c.notNegative(v.UDPTimeout.Duration, "ipvs", "udpTimeout")
	for i, s := range v.ExcludeCIDRs {
		c.cidr(field.NewPath("ipvs", "excludeCIDRs").Index(i), s)
	}
}

func (c *check) cidr(p *field.Path, s string) {
	if _, err := parsePrefix(s); err != nil {
		c.invalid(p, s, "must be a CIDR such as 10.100.0.0/16 or fd00:10::/64")
	}
}

func (c *check) bindAddress(s string) {
	if netutils.ParseIPSloppy(s) == nil {
		c.invalid(field.NewPath("bindAddress"), s, "must be an IP address")
	}
}

// hostPort accepts an empty address: --healthz-port=0 and --metrics-port=0
// mean that there is no such server.
func (c *check) hostPort(name, addr string) {
	if addr == "" {
		return
	}
	p := field.NewPath(name)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		c.invalid(p, addr, "must be an IP address and a port")
		return
	}
	if netutils.ParseIPSloppy(host) == nil {
		c.invalid(p, addr, "must have an IP address before the port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		c.invalid(p, addr, "must have a port from 1 to 65535")
	}
}

func (c *check) nodePortAddresses(list []string) {
	p := field.NewPath("nodePortAddresses")
	seen := make(map[string]bool)
	for i, s := range list {
		switch s {
		case NodePortPrimary, NodePortLocalhost, NodePortAll:
			if seen[s] {
				c.errs = append(c.errs, field.Duplicate(p.Index(i), s))
			}
			seen[s] = true
			continue
		}
		if _, err := parsePrefix(s); err != nil {
			c.invalid(p.Index(i), s, "must be a CIDR, 'primary', 'localhost' or 'all'")
		}
	}
}

func (c *check) detectLocal(cfg *v1alpha1.KubeProxyConfiguration) {
	needsName := func(name, value string) {
		if value == "" {
			c.errs = append(c.errs, field.Required(field.NewPath("detectLocal", name), "detectLocalMode is "+string(cfg.DetectLocalMode)))
		}
	}
	switch cfg.DetectLocalMode {
	case ClusterCIDR:
		c.clusterCIDR(cfg.ClusterCIDR)
	case NodeCIDR:
	case BridgeInterface:
		needsName("bridgeInterface", cfg.DetectLocal.BridgeInterface)
	case InterfaceNamePrefix:
		needsName("interfaceNamePrefix", cfg.DetectLocal.InterfaceNamePrefix)
	default:
		c.errs = append(c.errs, field.NotSupported(field.NewPath("detectLocalMode"), cfg.DetectLocalMode,
			[]v1alpha1.LocalMode{ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix}))
	}
}

func (c *check) clusterCIDR(s string) {
	p := field.NewPath("clusterCIDR")
	var valid []netip.Prefix
	for _, s := range splitCIDRs(s) {
		before := len(c.errs)
		if c.cidr(p, s); len(c.errs) == before {
			one, _ := parsePrefix(s)
			valid = append(valid, one)
		}
	}
	if len(valid) > 2 || len(valid) == 2 && valid[0].Addr().Is4() == valid[1].Addr().Is4() {
		c.invalid(p, s, "must be one CIDR, or one of each IP family")
	}
}
