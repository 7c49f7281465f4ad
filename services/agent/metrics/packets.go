package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portway/portway/modules/dataplane"
)

// packets are the metrics of what planes count in the kernel, where a counter
// starts anew when its rule is written. kube-proxy reads them from nfacct, which
// needs a kernel module of its own, and calls them iptables' in all modes.
type packets struct {
	totals map[string]prometheus.Counter // by kind

	mu   sync.Mutex
	last map[counter]uint64
}

// counter is what one plane counts.
type counter struct{ plane, kind string }

func newPackets(f factory) packets {
	return packets{
		totals: map[string]prometheus.Counter{
			dataplane.InvalidDropped:   f.counter("iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because conntrack calls them INVALID.").WithLabelValues(),
			dataplane.LoopbackAccepted: f.counter("iptables_localhost_nodeports_accepted_packets_total", "First packets of flows to NodePorts on loopback.").WithLabelValues(),
		},
		last: make(map[counter]uint64),
	}
}

func (p *packets) add(res dataplane.SyncResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for kind, now := range res.Report.Packets {
		total, known := p.totals[kind]
		if !known {
			continue
		}
		c := counter{res.Plane.Name, kind}
		before := p.last[c]
		p.last[c] = now
		if now < before {
			before = 0
		}
		total.Add(float64(now - before))
	}
}
