package config

import (
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// section is what kube-proxy keeps once for each mode although it means the
// same in all.
type section struct {
	name          string
	sync, minimum time.Duration
	masqueradeAll bool
	masqueradeBit *int32
}

// sectionOf returns the one that the configured mode reads. The ipvs mode
// masquerades as the section of iptables says.
func sectionOf(cfg *v1alpha1.KubeProxyConfiguration) section {
	t, v, n := &cfg.IPTables, &cfg.IPVS, &cfg.NFTables
	switch cfg.Mode {
	case "ipvs":
		return section{"ipvs", v.SyncPeriod.Duration, v.MinSyncPeriod.Duration, t.MasqueradeAll, t.MasqueradeBit}
	case "nftables":
		return section{"nftables", n.SyncPeriod.Duration, n.MinSyncPeriod.Duration, n.MasqueradeAll, n.MasqueradeBit}
	}
	return section{"iptables", t.SyncPeriod.Duration, t.MinSyncPeriod.Duration, t.MasqueradeAll, t.MasqueradeBit}
}

// SyncPeriod returns how often a plane compares with the kernel, and the least
// time between two changes.
func SyncPeriod(cfg *v1alpha1.KubeProxyConfiguration) (sync, minimum time.Duration) {
	s := sectionOf(cfg)
	return s.sync, s.minimum
}

// MasqueradeAll tells whether all traffic to ClusterIPs is masqueraded.
func MasqueradeAll(cfg *v1alpha1.KubeProxyConfiguration) bool { return sectionOf(cfg).masqueradeAll }

// MasqueradeBit returns the bit of the packet mark that Portway may use.
func MasqueradeBit(cfg *v1alpha1.KubeProxyConfiguration) int {
	return int(*sectionOf(cfg).masqueradeBit)
}
