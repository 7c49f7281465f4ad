package config

import (
	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// IPVS returns what the ipvs section says to that mode. The section must be
// valid.
func (o *Options) IPVS() ipvs.Options {
	v := &o.Proxy.IPVS
	out := ipvs.Options{
		Scheduler: v.Scheduler,
		StrictARP: v.StrictARP,
		Timeouts: kernel.Timeouts{
			TCP: v.TCPTimeout.Duration, TCPFin: v.TCPFinTimeout.Duration, UDP: v.UDPTimeout.Duration,
		},
	}
	for _, s := range v.ExcludeCIDRs {
		if p, err := parsePrefix(s); err == nil {
			out.ExcludeCIDRs = append(out.ExcludeCIDRs, p)
		}
	}
	return out
}
