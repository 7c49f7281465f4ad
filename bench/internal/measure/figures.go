package measure

// Figures are measured values by name. A name that is not there was not measured.
type Figures map[string]float64

// Figure describes a value.
type Figure struct {
	Name  string
	Title string
	Unit  string
	// Higher says that more is better.
	Higher bool
	// Alone is a value that the two proxies are not compared by.
	Alone bool
}

// Catalog is every figure, in the order of the report.
func Catalog() []Figure {
	return []Figure{
		{Name: "cold.kubernetes", Title: "start to the first connection to default/kubernetes", Unit: "s"},
		{Name: "cold.dns", Title: "start to the first connection to DNS", Unit: "s"},
		{Name: "cold.all", Title: "start to all Services", Unit: "s"},
		{Name: "cold.cpu", Title: "CPU of the start, agent and children", Unit: "s"},
		{Name: "rss.peak", Title: "RSS, peak", Unit: "MiB"},
		{Name: "rss.settled", Title: "RSS, settled", Unit: "MiB"},
		{Name: "idle.cpu", Title: "CPU while nothing changes, per minute", Unit: "s"},
		{Name: "objects.rules", Title: "rules", Unit: ""},
		{Name: "objects.chains", Title: "chains", Unit: ""},
		{Name: "objects.sets", Title: "ipsets", Unit: "", Alone: true},
		{Name: "objects.entries", Title: "entries of ipsets", Unit: "", Alone: true},
		{Name: "objects.virtual", Title: "virtual servers", Unit: "", Alone: true},
		{Name: "objects.real", Title: "real servers", Unit: "", Alone: true},
		{Name: "endpoint.p50", Title: "one endpoint changed, to the kernel, p50", Unit: "ms"},
		{Name: "endpoint.p99", Title: "one endpoint changed, to the kernel, p99", Unit: "ms"},
		{Name: "endpoint.cpu", Title: "CPU per change, agent and children", Unit: "ms"},
		{Name: "endpoint.netlink", Title: "datagrams of netlink per change, in both directions", Unit: ""},
		{Name: "endpoint.processes", Title: "processes and threads started per change", Unit: ""},
		{Name: "new.p50", Title: "new Service, to the kernel, p50", Unit: "ms"},
		{Name: "new.p99", Title: "new Service, to the kernel, p99", Unit: "ms"},
		{Name: "deleted.p50", Title: "deleted Service, to the kernel, p50", Unit: "ms"},
		{Name: "deleted.p99", Title: "deleted Service, to the kernel, p99", Unit: "ms"},
		{Name: "roll.p50", Title: "rolling update of 100 endpoints, to the kernel, p50", Unit: "ms"},
		{Name: "churn.p50", Title: "100 changes per second, to the kernel, p50", Unit: "ms"},
		{Name: "churn.p99", Title: "100 changes per second, to the kernel, p99", Unit: "ms"},
		{Name: "churn.cpu", Title: "100 changes per second, CPU per change", Unit: "ms"},
		{Name: "churn.rate", Title: "changes per second that were made", Unit: "1/s", Alone: true},
		{Name: "churn.rss", Title: "RSS, after 100 changes per second", Unit: "MiB"},
		{Name: "churn.lost", Title: "endpoints that differ from the API after that", Unit: "", Alone: true},
		{Name: "packet.direct", Title: "connect, direct path, p50", Unit: "µs", Alone: true},
		{Name: "packet.first", Title: "connect, over the direct path, first Service", Unit: "µs"},
		{Name: "packet.middle", Title: "connect, over the direct path, middle Service", Unit: "µs"},
		{Name: "packet.last", Title: "connect, over the direct path, last Service", Unit: "µs"},
		{Name: "packet.rate", Title: "new connections per second, last Service", Unit: "1/s", Higher: true},
		{Name: "packet.rate.direct", Title: "new connections per second, direct path", Unit: "1/s", Alone: true},
		{Name: "packet.throughput", Title: "throughput of one connection", Unit: "MiB/s", Higher: true},
		{Name: "packet.throughput.direct", Title: "throughput of one connection, direct path", Unit: "MiB/s", Alone: true},
		{Name: "packet.trip", Title: "round trip of one byte, p50", Unit: "µs"},
		{Name: "packet.trip.direct", Title: "round trip of one byte, direct path, p50", Unit: "µs", Alone: true},
		{Name: "restart.rules", Title: "restart: rules of nftables that came or went", Unit: "", Alone: true},
		{Name: "restart.messages", Title: "restart: messages of nftables about changes of any kind", Unit: "", Alone: true},
		{Name: "restart.broken", Title: "restart: connections of 100 that ended", Unit: "", Alone: true},
		{Name: "restart.refused", Title: "restart: new connections that failed", Unit: "", Alone: true},
		{Name: "restart.cpu", Title: "restart: CPU", Unit: "s"},
		{Name: "audit.time", Title: "full audit, after somebody else's write", Unit: "s", Alone: true},
		{Name: "audit.again", Title: "audit when nobody has written since", Unit: "s", Alone: true},
		{Name: "affinity.p50", Title: "one endpoint changed while 1,000 Services have affinity, p50", Unit: "ms"},
		{Name: "affinity.p99", Title: "one endpoint changed while 1,000 Services have affinity, p99", Unit: "ms"},
		{Name: "affinity.cpu", Title: "CPU per change while 1,000 Services have affinity", Unit: "ms"},
		{Name: "affinity.netlink", Title: "datagrams of netlink per change while 1,000 Services have affinity", Unit: ""},
		{Name: "affinity.processes", Title: "processes and threads started per change while 1,000 Services have affinity", Unit: ""},
	}
}
