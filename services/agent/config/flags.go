package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// addProxyFlags binds kube-proxy's flags to the fields that they set when no
// configuration file is given.
func addProxyFlags(fs *pflag.FlagSet, cfg *v1alpha1.KubeProxyConfiguration) {
	addClientFlags(fs, cfg)
	addServerFlags(fs, cfg)
	addModeFlags(fs, cfg)
	addTrafficFlags(fs, cfg)
	addConntrackFlags(fs, &cfg.Conntrack)
	addIPVSFlags(fs, &cfg.IPVS)
	logsapi.AddFlags(&cfg.Logging, fs)
}

func addClientFlags(fs *pflag.FlagSet, cfg *v1alpha1.KubeProxyConfiguration) {
	cc := &cfg.ClientConnection
	fs.StringVar(&cc.Kubeconfig, "kubeconfig", cc.Kubeconfig, "Path of the kubeconfig file that says how to reach the API server; without it and --master the pod's service account is used."+fileWins)
	fs.StringVar(&cc.ContentType, "kube-api-content-type", cc.ContentType, "Content type of requests to the API server."+fileWins)
	fs.Int32Var(&cc.Burst, "kube-api-burst", cc.Burst, "Requests to the API server that may follow each other at once."+fileWins)
	fs.Float32Var(&cc.QPS, "kube-api-qps", cc.QPS, "Requests per second to the API server."+fileWins)
	fs.DurationVar(&cfg.ConfigSyncPeriod.Duration, "config-sync-period", cfg.ConfigSyncPeriod.Duration, "How often all objects that are known from the API server are looked at again."+fileWins)
	fs.Var(cliflag.NewMapStringBool(&cfg.FeatureGates), "feature-gates", "Accepted for kube-proxy's sake: Portway has no feature gates.")
}

func addServerFlags(fs *pflag.FlagSet, cfg *v1alpha1.KubeProxyConfiguration) {
	fs.Var(&addressFlag{&cfg.BindAddress, false}, "bind-address", "The node's primary IP address, instead of the one in the Node object; no socket is bound to it."+fileWins)
	fs.Var(&addressFlag{&cfg.HealthzBindAddress, true}, "healthz-bind-address", "IP address and port of /healthz and /livez."+fileWins)
	fs.Var(&addressFlag{&cfg.MetricsBindAddress, true}, "metrics-bind-address", "IP address and port of /metrics and /proxyMode."+fileWins)
	fs.BoolVar(&cfg.BindAddressHardFail, "bind-address-hard-fail", cfg.BindAddressHardFail, "Exit if a server cannot bind to its port, instead of trying again."+fileWins)
	fs.BoolVar(&cfg.EnableProfiling, "profiling", cfg.EnableProfiling, "Serve /debug/pprof beside the metrics."+fileWins)
	fs.StringVar(&cfg.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", cfg.ShowHiddenMetricsForVersion, "Accepted for kube-proxy's sake: Portway hides no metrics.")
	fs.Int32Var(cfg.OOMScoreAdj, "oom-score-adj", *cfg.OOMScoreAdj, "The oom_score_adj of the agent's process, from -1000 to 1000."+fileWins)
}

func addModeFlags(fs *pflag.FlagSet, cfg *v1alpha1.KubeProxyConfiguration) {
	t := &cfg.IPTables
	fs.StringVar((*string)(&cfg.Mode), "proxy-mode", string(cfg.Mode), "The proxy mode: 'iptables', 'ipvs', 'userspace' or 'nftables'. Blank is the Node's annotation net.experimental.kubernetes.io/proxy-mode, or else the best that this node can run."+fileWins)
	fs.Int32Var(t.MasqueradeBit, "iptables-masquerade-bit", *t.MasqueradeBit, "The bit of the packet mark that says that a packet must be masqueraded, from 0 to 31."+fileWins)
	fs.BoolVar(&t.MasqueradeAll, "masquerade-all", t.MasqueradeAll, "Masquerade all traffic to ClusterIPs."+fileWins)
	fs.BoolVar(t.LocalhostNodePorts, "iptables-localhost-nodeports", *t.LocalhostNodePorts, "Serve NodePorts on loopback addresses."+fileWins)
	fs.DurationVar(&t.SyncPeriod.Duration, "iptables-sync-period", t.SyncPeriod.Duration, "How often the rules are compared with the kernel's."+fileWins)
	fs.DurationVar(&t.MinSyncPeriod.Duration, "iptables-min-sync-period", t.MinSyncPeriod.Duration, "The least time from one change of the rules to the next."+fileWins)
}

func addTrafficFlags(fs *pflag.FlagSet, cfg *v1alpha1.KubeProxyConfiguration) {
	fs.StringVar((*string)(&cfg.DetectLocalMode), "detect-local-mode", string(cfg.DetectLocalMode), "How traffic of pods is recognised: 'ClusterCIDR', 'NodeCIDR', 'BridgeInterface' or 'InterfaceNamePrefix'."+fileWins)
	fs.StringVar(&cfg.DetectLocal.BridgeInterface, "pod-bridge-interface", cfg.DetectLocal.BridgeInterface, "The bridge of the pods, for --detect-local-mode=BridgeInterface."+fileWins)
	fs.StringVar(&cfg.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", cfg.DetectLocal.InterfaceNamePrefix, "How the names of the pods' interfaces begin, for --detect-local-mode=InterfaceNamePrefix."+fileWins)
	fs.StringVar(&cfg.ClusterCIDR, "cluster-cidr", cfg.ClusterCIDR, "The range of the cluster's pods, or one for each IP family separated by a comma, for --detect-local-mode=ClusterCIDR."+fileWins)
	fs.StringSliceVar(&cfg.NodePortAddresses, "nodeport-addresses", cfg.NodePortAddresses, "Where NodePorts answer: CIDRs, 'primary', 'localhost' and 'all', separated by commas. Default: on all addresses."+fileWins)
}

func addConntrackFlags(fs *pflag.FlagSet, ct *v1alpha1.KubeProxyConntrackConfiguration) {
	fs.Int32Var(ct.MaxPerCore, "conntrack-max-per-core", *ct.MaxPerCore, "Connections that the kernel may track for each core; 0 leaves the limit as it is."+fileWins)
	fs.Int32Var(ct.Min, "conntrack-min", *ct.Min, "The least limit of tracked connections, whatever --conntrack-max-per-core comes to."+fileWins)
	fs.DurationVar(&ct.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", ct.TCPEstablishedTimeout.Duration, "After how long an idle TCP connection is forgotten; 0 leaves it as it is."+fileWins)
	fs.DurationVar(&ct.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", ct.TCPCloseWaitTimeout.Duration, "After how long a TCP connection that one side has closed is forgotten; 0 leaves it as it is."+fileWins)
	fs.BoolVar(&ct.TCPBeLiberal, "conntrack-tcp-be-liberal", ct.TCPBeLiberal, "Set nf_conntrack_tcp_be_liberal, and do not drop packets that conntrack calls invalid."+fileWins)
	fs.DurationVar(&ct.UDPTimeout.Duration, "conntrack-udp-timeout", ct.UDPTimeout.Duration, "After how long a UDP flow without an answer is forgotten; 0 leaves it as it is."+fileWins)
	fs.DurationVar(&ct.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", ct.UDPStreamTimeout.Duration, "After how long a UDP flow with answers is forgotten; 0 leaves it as it is."+fileWins)
}

func addIPVSFlags(fs *pflag.FlagSet, v *v1alpha1.KubeProxyIPVSConfiguration) {
	fs.DurationVar(&v.SyncPeriod.Duration, "ipvs-sync-period", v.SyncPeriod.Duration, "--iptables-sync-period for the ipvs mode."+fileWins)
	fs.DurationVar(&v.MinSyncPeriod.Duration, "ipvs-min-sync-period", v.MinSyncPeriod.Duration, "--iptables-min-sync-period for the ipvs mode."+fileWins)
	fs.StringVar(&v.Scheduler, "ipvs-scheduler", v.Scheduler, "The scheduler of the ipvs mode."+fileWins)
	fs.StringSliceVar(&v.ExcludeCIDRs, "ipvs-exclude-cidrs", v.ExcludeCIDRs, "Ranges of virtual servers that the ipvs mode leaves alone."+fileWins)
	fs.BoolVar(&v.StrictARP, "ipvs-strict-arp", v.StrictARP, "Set arp_ignore to 1 and arp_announce to 2 in the ipvs mode."+fileWins)
	fs.DurationVar(&v.TCPTimeout.Duration, "ipvs-tcp-timeout", v.TCPTimeout.Duration, "Timeout of idle IPVS TCP connections."+fileWins)
	fs.DurationVar(&v.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", v.TCPFinTimeout.Duration, "Timeout of IPVS TCP connections after a FIN."+fileWins)
	fs.DurationVar(&v.UDPTimeout.Duration, "ipvs-udp-timeout", v.UDPTimeout.Duration, "Timeout of IPVS UDP flows."+fileWins)
}

const fileWins = " Ignored with --config."

// addressFlag accepts an IP address, and with ports also an address and port.
type addressFlag struct {
	addr  *string
	ports bool
}

func (f *addressFlag) String() string {
	if f.addr == nil {
		return ""
	}
	return *f.addr
}

func (f *addressFlag) Type() string {
	if f.ports {
		return "ip:port"
	}
	return "ip"
}

func (f *addressFlag) Set(s string) error {
	s = strings.TrimSpace(s)
	var c check
	switch {
	case netutils.ParseIPSloppy(s) != nil:
	case f.ports:
		if c.hostPort("", s); len(c.errs) > 0 || s == "" {
			return fmt.Errorf("%q is neither an IP address nor one with a port", s)
		}
	default:
		return fmt.Errorf("%q is not an IP address", s)
	}
	*f.addr = s
	return nil
}
