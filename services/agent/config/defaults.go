package config

import (
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

const (
	healthzPort   = 10256
	metricsPort   = 10249
	masqueradeBit = 14
	oomScoreAdj   = -999
)

// Default returns what kube-proxy does when it is told nothing.
func Default() *v1alpha1.KubeProxyConfiguration {
	cfg := new(v1alpha1.KubeProxyConfiguration)
	SetDefaults(cfg)
	return cfg
}

// SetDefaults fills in what is not set, with the values that kube-proxy uses.
func SetDefaults(cfg *v1alpha1.KubeProxyConfiguration) {
	set(&cfg.BindAddress, "0.0.0.0")
	setAddresses(cfg)
	setPointer(&cfg.OOMScoreAdj, oomScoreAdj)
	set(&cfg.ConfigSyncPeriod.Duration, 15*time.Minute)
	set(&cfg.DetectLocalMode, ClusterCIDR)

	set(&cfg.IPTables.SyncPeriod.Duration, 30*time.Second)
	set(&cfg.IPTables.MinSyncPeriod.Duration, time.Second)
	setPointer(&cfg.IPTables.LocalhostNodePorts, true)
	setPointer(&cfg.IPTables.MasqueradeBit, masqueradeBit)
	set(&cfg.IPVS.SyncPeriod.Duration, 30*time.Second)
	set(&cfg.NFTables.SyncPeriod.Duration, 30*time.Second)
	set(&cfg.NFTables.MinSyncPeriod.Duration, time.Second)
	setPointer(&cfg.NFTables.MasqueradeBit, masqueradeBit)

	setPointer(&cfg.Conntrack.MaxPerCore, 32*1024)
	setPointer(&cfg.Conntrack.Min, 128*1024)
	setPointer(&cfg.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	// As long as servers usually wait: the FIN of a side that closes late must
	// still be translated (kubernetes#32551).
	setPointer(&cfg.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})

	set(&cfg.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	set(&cfg.ClientConnection.QPS, 5)
	set(&cfg.ClientConnection.Burst, 10)
	if cfg.FeatureGates == nil {
		cfg.FeatureGates = make(map[string]bool)
	}
	logsapi.SetRecommendedLoggingConfiguration(&cfg.Logging)
}

// setAddresses lets the family of bindAddress decide that of the servers.
func setAddresses(cfg *v1alpha1.KubeProxyConfiguration) {
	all, loopback := "0.0.0.0", "127.0.0.1"
	if ip := netutils.ParseIPSloppy(cfg.BindAddress); ip != nil && ip.To4() == nil {
		all, loopback = "::", "::1"
	}
	set(&cfg.HealthzBindAddress, all)
	set(&cfg.MetricsBindAddress, loopback)
	cfg.HealthzBindAddress = withPort(cfg.HealthzBindAddress, healthzPort)
	cfg.MetricsBindAddress = withPort(cfg.MetricsBindAddress, metricsPort)
}

// withPort appends a port to an address that has none. What is no address
// stays as it is, for Validate to find.
func withPort(addr string, port int) string {
	ip := netutils.ParseIPSloppy(addr)
	if ip == nil {
		return addr
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
